"""One run, from the plan to the swap: planner, workers, packer, leases, engines, and the proof."""
