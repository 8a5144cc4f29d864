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
