#!/bin/bash
# behaviour: in a notebook, what is kept by the running task, or attached to its context, ends with the cell.
#   ipykernel 7 runs every cell in an asyncio task of its own; ipykernel 6 runs all cells that do not await in one
#   task. The thread is the same in both. So a timer or an energy window that is kept by `asyncio.current_task()`, to
#   be right in programs with several tasks, finds nothing in the cell that ends it, only since ipykernel 7.
#   Context variables differ from that: a plain cell passes them on to all later cells, a cell that awaits to none. A
#   span of OpenTelemetry that one cell makes current can therefore not be ended by a cell that awaits: `detach` logs
#   an error, raises nothing, and every later span of the notebook is a child of the epoch that is over.
# seen: Python 3.11, jupyter_client 8.10.0, opentelemetry-sdk 1.45.2
#   ipykernel 6.30.1: same task yes, same thread yes    ipykernel 7.4.0: same task no, same thread yes
#   both: plain -> plain yes, plain -> await yes, await -> plain no, await -> await no; detached: no
# needs: python3 (3.10 or later) with venv, PyPI. Exits with 0 as long as they do so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > cells.py <<'PYTHON'
from jupyter_client.manager import start_new_kernel

CELLS = [
    """
import asyncio, contextvars, threading
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
of_plain = contextvars.ContextVar("of_plain", default=False)
of_awaiting = contextvars.ContextVar("of_awaiting", default=False)
of_plain.set(True)
task, thread = asyncio.current_task(), threading.get_ident()
""",
    "print('same task', asyncio.current_task() is task, 'same thread', threading.get_ident() == thread)",
    "print('plain to plain', of_plain.get())",
    "await asyncio.sleep(0); print('plain to await', of_plain.get()); of_awaiting.set(True)",
    "print('await to plain', of_awaiting.get())",
    "await asyncio.sleep(0); print('await to await', of_awaiting.get())",
    """
tracer = TracerProvider().get_tracer("training")
epoch = tracer.start_span("epoch")
token = context.attach(trace.set_span_in_context(epoch))
""",
    "await asyncio.sleep(0); context.detach(token); epoch.end()",
    "print('detached', tracer.start_span('after the epoch').parent is None)",
]


def shown(message):
    content = message["content"]
    if message["msg_type"] == "stream" and content["name"] == "stdout":
        print(content["text"], end="")
    if message["msg_type"] == "error":
        raise SystemExit(content["evalue"])


manager, client = start_new_kernel(kernel_name="python3")
for cell in CELLS:
    client.execute_interactive(cell, timeout=60, output_hook=shown)
client.stop_channels()
manager.shutdown_kernel(now=True)
PYTHON
cells_of() {
    python3 -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check "ipykernel==$1" jupyter_client==8.10.0 opentelemetry-sdk==1.45.2
    PATH="$work/$1/bin:$PATH" "$1/bin/python" cells.py 2>"$1.log"
}
both='plain to plain True
plain to await True
await to plain False
await to await False
detached False'
six=$(cells_of 6.30.1)
seven=$(cells_of 7.4.0)
printf 'ipykernel 6.30.1\n%s\nipykernel 7.4.0\n%s\n' "$six" "$seven"
[ "$six" = "same task True same thread True
$both" ]
[ "$seven" = "same task False same thread True
$both" ]
