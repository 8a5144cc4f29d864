"""The daemons, asked from a program with an event loop."""

import asyncio
import inspect
import threading

import pytest

import pfo_gpu


def test_every_question_can_be_awaited(node):
    def public(kind):
        return {name for name, member in inspect.getmembers(kind) if inspect.isfunction(member) and name[0] != "_"}

    assert public(pfo_gpu.AsyncNode) == public(pfo_gpu.Node)

    async def ask():
        daemons = pfo_gpu.AsyncNode()
        return await asyncio.gather(daemons.status(), daemons.profiles(), daemons.savings(by="user"))

    status, profiles, savings = asyncio.run(ask())
    assert status.daemon.pid == node.daemon.pid and profiles == [] and savings.by == "user"


def test_a_refusal_is_raised_where_it_is_awaited(node):
    with pytest.raises(pfo_gpu.NodeError, match="nobody"):
        asyncio.run(pfo_gpu.AsyncNode().swap("nobody", None))


def test_progress_of_an_awaited_tune_comes_on_the_loops_own_thread(node, training):
    threads = set()

    async def stopped_at_once():
        daemons = pfo_gpu.AsyncNode()

        def show(progress):
            threads.add(threading.get_ident())
            if not progress.is_over:
                asyncio.ensure_future(daemons.stop_tune("job"))

        await daemons.tune("job", progress=show)

    with pytest.raises(pfo_gpu.NodeError, match="the tune of job job was stopped"):
        asyncio.run(stopped_at_once())
    assert threads == {threading.get_ident()}


def test_a_task_that_is_cancelled_leaves_the_tune_to_the_agent(node, training):
    async def cancelled():
        daemons = pfo_gpu.AsyncNode()
        begun = asyncio.Event()
        tuning = asyncio.ensure_future(daemons.tune("job", progress=lambda _: begun.set()))
        await begun.wait()
        tuning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tuning
        (tune,) = await daemons.tunes()
        await daemons.stop_tune("job")
        return tune

    assert not asyncio.run(cancelled()).is_over
