"""A plan in which every instruction of a stage has a clock of its own."""

import json


class Clocks:
    """The clocks of each stage, in MHz and in the order of its instructions."""

    def __init__(self, orders):
        self._orders = orders
        # 7 has no factor in common with any number of instructions in these tests.
        self._clocks = [
            [600 + 15 * (stage + i * 7 % len(order)) for i in range(len(order))]
            for stage, order in enumerate(orders)
        ]

    def write_plan(self, file, microbatches):
        stages = [
            {
                "stage": stage,
                "instructions": [
                    {"instruction": name, "microbatch": microbatch, "chunk": chunk, "frequency_mhz": mhz}
                    for (name, microbatch, chunk), mhz in zip(order, clocks)
                ],
            }
            for stage, (order, clocks) in enumerate(zip(self._orders, self._clocks))
        ]
        plan = {
            "format": "pfo-plan/1",
            "gpu": "A40",
            "schedule": "custom",
            "num_stages": len(stages),
            "num_microbatches": microbatches,
            "p2p_blocking_power_w": 70,
            "stages": stages,
        }
        file.write_text(json.dumps(plan))

    def first(self, stage):
        """The clock of the first instruction of a stage's step."""
        return self._clocks[stage][0]

    def steps_for(self, stage, clocks_set):
        """How many steps it takes to set these clocks in the order of a stage's plan.

        A daemon may leave out clocks that were outdated before the driver was free, but never change their
        order.
        """
        clocks, position = self._clocks[stage], 0
        for mhz in clocks_set:
            assert mhz in clocks, f"{mhz} MHz is no clock of stage {stage}"
            position += (clocks.index(mhz) - position) % len(clocks) + 1
        return -(-position // len(clocks))
