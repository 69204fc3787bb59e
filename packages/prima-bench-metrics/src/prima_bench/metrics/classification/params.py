"""Parameters that several classification metrics share, as their specs name them."""

from prima_bench.metrics.spec import Param

AVERAGED_LABELS = Param(
    name="labels",
    default="present",
    choices=("present", "union"),
    summary="Average over the classes of the solution, or over those of the solution and the predictions.",
)
