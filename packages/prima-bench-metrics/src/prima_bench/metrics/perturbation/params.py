"""Parameters that several perturbation metrics share, as their specs name them."""

from prima_bench.metrics.spec import Param

CONTROL_SOURCE = Param(
    name="control_source",
    default="solution",
    choices=("solution", "prediction"),
    summary="Whose control cells the prediction's effect is taken against; the truth always has its own.",
)

DEBIASED_CONVENTION = Param(
    name="convention",
    default="default",
    choices=("default", "vcc2026"),
    summary="How noise is subtracted. vcc2026: as cell-eval2 0.20, see the notes.",
)

DE_K = Param(
    name="k", default=0, range=(0, None), summary="At most so many genes of each list; 0 for as many as there are."
)

DE_SCORE = Param(
    name="score",
    default="statistic",
    choices=("statistic", "fdr"),
    summary="What ranks the genes: the prediction's z score, or -log10 of its false discovery rate.",
)

DE_TABLE = Param(
    name="table",
    default="default",
    choices=("default", "vcc2026", "cell_eval"),
    summary=(
        "How differential expression is tested: rank-sum tests against the solution's control cells, false discovery "
        "rate below 0.05. default: counts per 10,000; genes that 1 % of those cells express; log2 fold changes of "
        "means plus the smallest mean that those cells could show, one count in one cell of median depth. vcc2026: as "
        "cell-eval2 0.20. cell_eval: as cell-eval 0.8.2, predictions against their own control cells."
    ),
)

EXCLUDE_DE_TARGETS = Param(
    name="exclude_targets",
    default="table",
    choices=("table", "none", "own", "own_single", "panel", "panel_single"),
    summary=(
        "Leave out the perturbation's own target genes, those of all perturbations, or none, once false discovery "
        "rates are known; own_single and panel_single: only those of perturbations with one target. table: as its "
        "convention does: own; own_single for vcc2026, none for cell_eval."
    ),
)

EXCLUDE_OWN_TARGETS = Param(
    name="exclude_targets",
    default="own",
    choices=("none", "own", "own_single", "panel", "panel_single"),
    summary=(
        "Leave out the perturbation's own target genes, those of all perturbations, or none. "
        "own_single, panel_single: only those of perturbations with one target, as cell-eval reads labels."
    ),
)

EXCLUDE_PANEL_TARGETS = Param(
    name="exclude_targets",
    default="panel",
    choices=("none", "own", "own_single", "panel", "panel_single"),
    summary=(
        "Leave out the target genes of all perturbations, of the one concerned, or none. "
        "own_single, panel_single: only those of perturbations with one target, as cell-eval reads labels."
    ),
)

EXCLUDE_TARGETS = Param(
    name="exclude_targets",
    default="none",
    choices=("none", "own", "own_single", "panel", "panel_single"),
    summary=(
        "Leave out the perturbation's own target genes, or those of all perturbations. "
        "own_single, panel_single: only those of perturbations with one target, as cell-eval reads labels."
    ),
)

LEAVE_ONE_OUT = Param(
    name="leave_one_out",
    default=True,
    summary="Measure a perturbation from the mean of the others; false: from the mean of all, itself included.",
)

RANKING = Param(
    name="ranking",
    default="mid",
    choices=("mid", "position"),
    summary="1 - k / (P - 1) with half of the ties in k; position: 1 - k / P, with ties in the order of their codes.",
)

TARGET_SUM = Param(
    name="target_sum",
    default=0.0,
    range=(0.0, 1e15),
    summary="Counts only: total that pseudobulks are scaled to, up to 1e15; 0 is the solution's median group total.",
)
