"""Parameters that several perturbation metrics share, as their specs name them."""

from prima_bench.metrics.spec import Param

CONTROL_SOURCE = Param(
    name="control_source",
    default="solution",
    choices=("solution", "prediction"),
    summary="Whose control cells the prediction's effect is taken against; the truth always has its own.",
)

EXCLUDE_PANEL_TARGETS = Param(
    name="exclude_targets",
    default="panel",
    choices=("none", "own", "panel"),
    summary="Leave out the target genes of all perturbations, of the one concerned, or none.",
)

EXCLUDE_TARGETS = Param(
    name="exclude_targets",
    default="none",
    choices=("none", "own", "panel"),
    summary="Leave out the perturbation's own target genes, or those of all perturbations.",
)

LEAVE_ONE_OUT = Param(
    name="leave_one_out",
    default=True,
    summary="Measure a perturbation from the mean of the others; false: from the mean of all, itself included.",
)

TARGET_SUM = Param(
    name="target_sum",
    default=0.0,
    summary="Counts only: total that pseudobulks are scaled to, up to 1e15; 0 is the solution's median group total.",
)
