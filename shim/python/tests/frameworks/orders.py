"""Orders of instructions by their definition: instruction, microbatch, chunk."""


def gpipe(microbatches):
    return [["forward", m, 0] for m in range(microbatches)] + [["backward", m, 0] for m in range(microbatches)]


def one_forward_one_backward(stage, stages, microbatches):
    order, backwards = [], 0
    for forward in range(microbatches):
        order.append(["forward", forward, 0])
        if forward >= stages - 1 - stage:
            order.append(["backward", backwards, 0])
            backwards += 1
    return order + [["backward", m, 0] for m in range(backwards, microbatches)]


def of_deepspeed(stage, stages, microbatches):
    order = []
    for unit in one_forward_one_backward(stage, stages, microbatches):
        if unit[0] == "forward" and stage in (0, stages - 1):
            order.append(["load", *unit[1:]])
        order.append(unit)
    return [*order, ["collective", 0, 0], ["optimizer_step", 0, 0]]
