"""Dataset ``perturbsim``: a simulated Perturb-seq screen, and the recipe that simulates it.

No gene and no cell in it is real. The truth is what :func:`simulate_truth` draws; cells are drawn around it by
:func:`draw_counts`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prima_bench.tasks.specs import ArtifactSpec, DatasetSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from anndata import AnnData

    Floats = npt.NDArray[np.float64]
    Integers = npt.NDArray[np.int64]

SPEC = DatasetSpec(
    name="perturbsim",
    version="1.0.0",
    task="perturbation_prediction",
    title="Simulated Perturb-seq",
    summary=(
        "Simulated counts of 1,000 genes under 60 single and 20 double knock-downs; 16 singles and 15 doubles are held "
        "out. No gene is real."
    ),
    artifacts=(
        ArtifactSpec(
            role="train",
            uri="package://prima_bench.tasks/data/perturbsim-1.0.0/train.h5ad",
            sha256="4a16d7b2343d0cecfba0e423a784dd4bed1a7dcccbe60732da984318f7cf3239",
            size=1_926_384,
            contents="Counts of control cells and of cells under 44 single and 5 double perturbations.",
        ),
        ArtifactSpec(
            role="test",
            uri="package://prima_bench.tasks/data/perturbsim-1.0.0/test.h5ad",
            sha256="1073b0d9a1846fef8e6664eb231adaf09cc60de50d75e6ba500dcc715981b452",
            size=428_951,
            contents=(
                'The cells to predict (`obs["to_predict"]`), with perturbation, batch and context but `X` censored '
                "to zero, beside real control cells."
            ),
        ),
        ArtifactSpec(
            role="solution",
            uri="package://prima_bench.tasks/data/perturbsim-1.0.0/solution.h5ad",
            sha256="f5445732ca5bd6e011c65d7897be4bd34cd85976eb91ba66016757fa3f35b256",
            size=1_317_133,
            contents="The rows of test with all counts.",
        ),
        ArtifactSpec(
            role="anchors",
            uri="package://prima_bench.tasks/data/perturbsim-1.0.0/anchors.json",
            sha256="91abe0699fb3d40f598f716852d33bc3f04c18846b6f1f707c0335abfe27f9c7",
            size=6_448,
            contents="What trivial models and a replicate score, by metric; skill is measured between the two.",
        ),
    ),
    options={"perturbation_key": "perturbation", "control": "control", "scale": "counts"},
    source="Simulated by the recipe in this dataset's file, with a fixed seed; no outside data.",
    licence="Apache-2.0",
    licence_url="https://www.apache.org/licenses/LICENSE-2.0",
    citation="prima-bench, dataset perturbsim.",
    organism="simulated",
    modality="scRNA-seq (simulated Perturb-seq)",
    split=(
        "By perturbation: 16 of 60 single and 15 of 20 double perturbations are only in test. Of the test doubles, 8 "
        "combine two singles seen in training, 5 one seen and one unseen, 2 two unseen. Control cells are divided "
        "between train and test."
    ),
    counts={
        "cells": 4401,
        "train_cells": 2588,
        "test_cells": 1813,
        "cells_to_predict": 1413,
        "control_cells": 800,
        "genes": 1000,
        "single_perturbations": 60,
        "double_perturbations": 20,
        "train_perturbations": 49,
        "test_perturbations": 31,
        "batches": 3,
    },
    notes=(
        "- Simulated: it shows that a method and this tool work, and says nothing about biology.\n"
        "- Counts are negative binomial around relative expression; each cell varies in depth (median 1,400 counts), "
        "batch and the activity of 12 expression programs. 35 to 55 cells per perturbation.\n"
        "- Every perturbation shifts two programs that its target belongs to, 40 genes of its own and 200 genes by a "
        "stress response that all share; its own transcript falls by 75 to 92 %. Doubles are damped sums plus an "
        "interaction.\n"
        "- The mean of the training perturbations explains the stress response and nothing specific. What an unseen "
        "target does can partly be learned from the co-expression of control cells; what a double does, largely "
        "from its singles.\n"
        "- The truth before sampling is what `simulate_truth` of this dataset's module returns."
    ),
)

N_GENES = 1000
N_PROGRAMS = 12
GENES_PER_PROGRAM = 60
N_BATCHES = 3
N_SINGLES = 60
DOUBLES = {"train": 5, "both seen": 8, "one seen": 5, "none seen": 2}
CONTROL_CELLS = 400
CELLS_PER_PERTURBATION = (35, 56)
MEDIAN_DEPTH = 1400.0
ACTIVITY_SD = 0.4
_SEED = 20240


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The simulated biology, before any cell is drawn.

    Attributes:
        genes: Names [genes].
        baseline: Log relative expression of an unperturbed cell [genes].
        loadings: Change of log expression per unit of a program's activity [programs, genes].
        dispersion: Size parameter of each gene's negative binomial distribution [genes].
        batch: Log shift of expression [batches, genes].
        targets: Target genes of each perturbation, singles first.
        effects: Change of log relative expression [perturbations, genes], rows in the order of ``targets``.
        held_out: Perturbations that only the test artifact has.
    """

    genes: tuple[str, ...]
    baseline: "Floats"
    loadings: "Floats"
    dispersion: "Floats"
    batch: "Floats"
    targets: dict[str, tuple[str, ...]]
    effects: "Floats"
    held_out: frozenset[str]


def build(directory: Path) -> None:
    """Write ``train.h5ad``, ``test.h5ad`` and ``solution.h5ad``."""
    import numpy as np

    from prima_bench.tasks.recipes import write_artifact

    random = np.random.RandomState(_SEED)
    truth = simulate_truth(random)
    labels, in_test = _list_cells(random, truth)
    batches = random.randint(N_BATCHES, size=len(labels))
    counts = draw_counts(random, truth, labels, batches)
    to_predict = in_test & (labels != "control")
    for split, rows in (("train", ~in_test), ("test", in_test), ("solution", in_test)):
        x = counts[rows]
        if split == "test":
            x = x * ~to_predict[rows, None]
        cells = _artifact(truth, x, labels[rows], batches[rows], np.flatnonzero(rows))
        if split != "train":
            cells.obs["to_predict"] = to_predict[rows]
        cells.uns.update(dataset=SPEC.key, split=split)
        write_artifact(cells, directory / f"{split}.h5ad")


def simulate_truth(random: "np.random.RandomState") -> Truth:
    """Draw genes, programs, perturbations and their effects.

    A knock-down removes 75 to 92 % of its target's transcript. The target belongs to two expression programs and
    shifts both by its loading, which also couples them in unperturbed cells: what an unseen target does can partly be
    read off the co-expression of control cells. Beyond that a perturbation moves 40 genes of its own, and 200 genes by
    a stress response that all perturbations share, in differing strength. A double adds its singles' effects, damped
    to 85 %; their stress adds in squares; an interaction moves 25 more genes.
    """
    import numpy as np

    genes = tuple(f"SIM{i:04d}" for i in range(1, N_GENES + 1))
    baseline = random.normal(0.0, 0.9, N_GENES)
    loadings, regulators = _draw_programs(random, baseline)
    unseen = {i for i in range(N_SINGLES) if i % 5 == 4 or i % 15 == 3}
    parts = [(i,) for i in range(N_SINGLES)] + _draw_pairs(random, unseen)
    targets = [tuple(genes[regulators[i]] for i in part) for part in parts]
    labels = ["+".join(names) for names in targets]
    return Truth(
        genes=genes,
        baseline=baseline,
        loadings=loadings,
        dispersion=np.exp(random.normal(1.8, 0.4, N_GENES)),
        batch=random.normal(0.0, 0.12, (N_BATCHES, N_GENES)),
        targets=dict(zip(labels, targets, strict=True)),
        effects=_draw_effects(random, loadings, regulators, parts),
        held_out=frozenset({labels[i] for i in unseen} | set(labels[N_SINGLES + DOUBLES["train"] :])),
    )


def draw_counts(
    random: "np.random.RandomState", truth: Truth, labels: "npt.NDArray[np.str_]", batches: "Integers"
) -> "Integers":
    """Draw cells: negative binomial counts around each cell's own mean.

    Args:
        random: Source of randomness.
        truth: The simulated biology.
        labels: Perturbation of each cell, or ``"control"`` [cells].
        batches: Batch of each cell [cells].

    Returns:
        Counts [cells, genes].
    """
    import numpy as np

    activity = random.normal(0.0, ACTIVITY_SD, (len(labels), N_PROGRAMS))
    depth = np.exp(random.normal(np.log(MEDIAN_DEPTH), 0.25, len(labels)))
    log_mean = truth.baseline + truth.batch[batches] + activity @ truth.loadings
    row_of = {label: row for row, label in enumerate(truth.targets)}
    perturbed = np.flatnonzero(labels != "control")
    log_mean[perturbed] += truth.effects[[row_of[label] for label in labels[perturbed]]]
    share = np.exp(log_mean)
    share /= share.sum(axis=1, keepdims=True)
    noise = random.standard_gamma(truth.dispersion, log_mean.shape) / truth.dispersion
    return random.poisson(depth[:, None] * share * noise)


def _draw_programs(random: "np.random.RandomState", baseline: "Floats") -> tuple["Floats", "Integers"]:
    """Loadings [programs, genes], and the genes to perturb [singles], as many of each program."""
    import numpy as np

    members = random.permutation(N_GENES)[: N_PROGRAMS * GENES_PER_PROGRAM].reshape(N_PROGRAMS, GENES_PER_PROGRAM)
    loadings = np.zeros((N_PROGRAMS, N_GENES))
    for program, rows in enumerate(members):
        loadings[program, rows] = random.normal(0.7, 0.25, len(rows))
    # A knock-down of a gene that is hardly there would show nothing: targets are the best expressed of each program.
    each = N_SINGLES // N_PROGRAMS
    regulators = np.concatenate([rows[np.argsort(-baseline[rows], kind="stable")][:each] for rows in members])
    for i, gene in enumerate(regulators):
        own = i // each
        other = (own + 1 + random.randint(N_PROGRAMS - 1)) % N_PROGRAMS
        loadings[own, gene] = random.uniform(0.8, 1.2)
        loadings[other, gene] = random.uniform(0.5, 0.9) * random.choice([-1.0, 1.0])
    return loadings, regulators


def _draw_effects(
    random: "np.random.RandomState", loadings: "Floats", regulators: "Integers", parts: list[tuple[int, ...]]
) -> "Floats":
    """Change of log expression [perturbations, genes] of each perturbation, given the singles it is made of."""
    import numpy as np

    shared = _few_genes(random, 200, 0.6)
    specific = np.stack([-1.1 * loadings[:, gene] @ loadings + _few_genes(random, 40, 0.8) for gene in regulators])
    stress = random.uniform(0.6, 1.4, N_SINGLES)
    knock_down = np.log(random.uniform(0.08, 0.25, N_SINGLES))
    effects = np.zeros((len(parts), N_GENES))
    for effect, part in zip(effects, map(list, parts), strict=True):
        if len(part) == 1:
            effect += specific[part[0]] + stress[part[0]] * shared
        else:
            effect += 0.85 * specific[part].sum(axis=0) + np.sqrt(np.square(stress[part]).sum()) * shared
            effect += _few_genes(random, 25, 0.8)
        effect[regulators[part]] = knock_down[part]
    return effects


def _few_genes(random: "np.random.RandomState", n_genes: int, sd: float) -> "Floats":
    """A log change of ``n_genes`` random genes, none of the others."""
    import numpy as np

    change = np.zeros(N_GENES)
    change[random.permutation(N_GENES)[:n_genes]] = random.normal(0.0, sd, n_genes)
    return change


def _draw_pairs(random: "np.random.RandomState", unseen: set[int]) -> list[tuple[int, ...]]:
    """Distinct pairs of singles, as many of each kind as ``DOUBLES`` says, those for training first."""
    kinds = {"train": 0, "both seen": 0, "one seen": 1, "none seen": 2}
    pairs: list[tuple[int, ...]] = []
    for kind, wanted in DOUBLES.items():
        found = 0
        while found < wanted:
            a, b = sorted(int(i) for i in random.permutation(N_SINGLES)[:2])
            if (a, b) not in pairs and len({a, b} & unseen) == kinds[kind]:
                pairs.append((a, b))
                found += 1
    return pairs


def _list_cells(
    random: "np.random.RandomState", truth: Truth
) -> tuple["npt.NDArray[np.str_]", "npt.NDArray[np.bool_]"]:
    """The perturbation of each cell and whether it is a test cell, shuffled so that order and name tell nothing."""
    import numpy as np

    labels = ["control"] * (2 * CONTROL_CELLS)
    in_test = [False] * CONTROL_CELLS + [True] * CONTROL_CELLS
    for label in truth.targets:
        n_cells = int(random.randint(*CELLS_PER_PERTURBATION))
        labels += [label] * n_cells
        in_test += [label in truth.held_out] * n_cells
    order = random.permutation(len(labels))
    return np.array(labels)[order], np.array(in_test)[order]


def _artifact(
    truth: Truth,
    counts: "Integers",
    labels: "npt.NDArray[np.str_]",
    batches: "Integers",
    numbers: "Integers",
) -> "AnnData":
    import json

    import numpy as np
    import pandas as pd
    from anndata import AnnData
    from scipy.sparse import csr_matrix

    obs = pd.DataFrame(
        {
            "perturbation": pd.Categorical(labels),
            "batch": pd.Categorical([f"batch{b + 1}" for b in batches]),
            "context": pd.Categorical(["simulated"] * len(labels)),
        },
        index=pd.Index([f"cell{i:05d}" for i in numbers], dtype=object),
    )
    targets = {label: list(genes) for label, genes in sorted(truth.targets.items()) if label in set(labels)}
    return AnnData(
        X=csr_matrix(counts, dtype=np.float32),
        obs=obs,
        var=pd.DataFrame(index=pd.Index(truth.genes, dtype=object)),
        uns={"perturbation_targets": json.dumps(targets)},
    )
