"""Every perturbation metric against a few lines of numpy and scipy in float64."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.catalog import list_specs, load_metric
from prima_bench.metrics.panel import Panel
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale

Array = np.ndarray


class Data(NamedTuple):
    """A solution, a prediction and the targets, as plain arrays."""

    x: Array
    group: Array
    y: Array
    predicted: Array
    targets: list[list[int]]
    scale: Scale

    @property
    def perturbations(self) -> int:
        return len(self.targets)


@st.composite
def problems(draw: st.DrawFn, scale: Scale | None = None) -> Data:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    p, genes = draw(st.integers(2, 6)), draw(st.integers(5, 40))
    scale = scale or draw(st.sampled_from(("counts", "log1p_cp10k")))

    def cells() -> tuple[Array, Array]:
        sizes = rng.integers(1, 6, p + 1)
        group = rng.permutation(np.repeat(np.arange(p + 1), sizes))
        # Genes over several decades: sums on one scale would be exact and hide a wrong order of additions.
        level = rng.lognormal(0.0, 2.0, genes)
        if scale == "counts":
            x = rng.poisson(5 * level * rng.lognormal(0.0, 0.5, (len(group), genes))) + rng.integers(0, 2, genes)
            x[:, 0] += 1
            return x.astype(np.float64), group
        return rng.lognormal(0.0, 0.5, (len(group), genes)) * level, group

    (x, group), (y, predicted) = cells(), cells()
    y = np.maximum(0.7 * y[:, rng.permutation(genes)] if draw(st.booleans()) else y, 0)
    y = np.floor(y) if scale == "counts" else y
    y[:, 0] += 1
    targets = [sorted(rng.choice(genes - 2, rng.integers(0, 3), replace=False).tolist()) for _ in range(p)]
    return Data(x, group, y, predicted, targets, scale)


def profiles(data: Data, target_sum: float = 0.0) -> tuple[Array, Array]:
    def sums(x: Array, group: Array) -> Array:
        return np.array([x[group == p].sum(axis=0) for p in range(data.perturbations + 1)])

    s, t = sums(data.x, data.group), sums(data.y, data.predicted)
    if data.scale == "log1p_cp10k":
        return s / np.bincount(data.group)[:, None], t / np.bincount(data.predicted)[:, None]
    total = target_sum or float(np.median(s.sum(axis=1)))
    return tuple(np.log1p(total * a / a.sum(axis=1, keepdims=True)) for a in (s, t))


def kept(data: Data, exclude: str) -> list[Array]:
    genes, p = data.x.shape[1], data.perturbations
    targets = [t for t in data.targets if len(t) == 1 or not exclude.endswith("single")]
    own = [np.setdiff1d(np.arange(genes), t if t in targets else []) for t in data.targets]
    panel = np.setdiff1d(np.arange(genes), [g for t in targets for g in t])
    return {"none": [np.arange(genes)] * p, "own": own, "panel": [panel] * p}[exclude.removesuffix("_single")]


def by_unit(formula: Callable[..., float], origin: str = "control") -> Callable[..., Array]:
    def values(
        data: Data, *, exclude_targets: str = "none", control_source: str = "solution", **params: float
    ) -> Array:
        true, pred = profiles(data, params.pop("target_sum", 0.0))
        left_out = params.pop("leave_one_out", True)
        out = []
        for p, genes in enumerate(kept(data, exclude_targets)):
            m, q = true[p + 1], pred[p + 1]
            o = {
                "control": true[0],
                "none": 0.0 * true[0],
                "others": (np.delete(true[1:], p, axis=0) if left_out else true[1:]).mean(axis=0),
            }[origin]
            e = q - (pred[0] if control_source == "prediction" else o)
            out.append(formula(e[genes], (m - o)[genes], **params))
        return np.array(out)

    return values


def top_k(e: Array, d: Array, k: int = 20) -> float:
    genes = np.argsort(-np.abs(d), kind="stable")[:k]
    return float(scipy.stats.pearsonr(e[genes], d[genes])[0])


def discrimination(distance: Callable[[Array, Array], float]) -> Callable[..., Array]:
    def values(
        data: Data,
        *,
        exclude_targets: str = "panel",
        control_source: str = "solution",
        ranking: str = "mid",
        target_sum: float = 0.0,
    ) -> Array:
        true, pred = profiles(data, target_sum)
        d, e = true[1:] - true[0], pred[1:] - (pred[0] if control_source == "prediction" else true[0])
        out = []
        for p, genes in enumerate(kept(data, exclude_targets)):
            all_q = np.array([distance(e[p, genes], d[q, genes]) for q in range(len(d))])
            gap = np.where(np.isclose(all_q, all_q[p], rtol=1e-11, atol=0), 0.0, all_q - all_q[p])
            if ranking == "position":
                out.append(1 - (np.sum(gap < 0) + np.sum(gap[:p] == 0)) / len(d))
            else:
                out.append(1 - (np.sum(gap < 0) + 0.5 * (np.sum(gap == 0) - 1)) / (len(d) - 1))
        return np.array(out)

    return values


EXPECTED: dict[str, Callable[..., Array]] = {
    "mae": by_unit(lambda e, d: float(np.abs(e - d).mean()), "none"),
    "mse": by_unit(lambda e, d: float(((e - d) ** 2).mean()), "none"),
    "rmse": by_unit(lambda e, d: float(np.sqrt(((e - d) ** 2).mean())), "none"),
    "mae_delta": by_unit(lambda e, d: float(np.abs(e - d).mean())),
    "mse_delta": by_unit(lambda e, d: float(((e - d) ** 2).mean())),
    "pearson_delta": by_unit(lambda e, d: float(scipy.stats.pearsonr(e, d)[0])),
    "spearman_delta": by_unit(lambda e, d: float(scipy.stats.spearmanr(e, d)[0])),
    "cosine_delta": by_unit(lambda e, d: float(e @ d / np.linalg.norm(e) / np.linalg.norm(d))),
    "pearson_delta_pertmean": by_unit(lambda e, d: float(scipy.stats.pearsonr(e, d)[0]), "others"),
    "r2_delta": by_unit(lambda e, d: float(1 - ((e - d) ** 2).sum() / ((d - d.mean()) ** 2).sum())),
    "top_k_delta_pearson": by_unit(top_k),
    "pds_cosine": discrimination(lambda e, d: float(1 - e @ d / np.linalg.norm(e) / np.linalg.norm(d))),
    "pds_l1": discrimination(lambda e, d: float(np.abs(e - d).sum())),
    "pds_l2": discrimination(lambda e, d: float(np.linalg.norm(e - d))),
}
PARAMS: dict[str, st.SearchStrategy[object]] = {
    "exclude_targets": st.sampled_from(("none", "own", "own_single", "panel", "panel_single")),
    "control_source": st.sampled_from(("solution", "prediction")),
    "target_sum": st.sampled_from((0.0, 1e4, 5e4)),
    "k": st.sampled_from((3, 5, 20)),
    "leave_one_out": st.booleans(),
    "ranking": st.sampled_from(("mid", "position")),
}


def reference_of(data: Data) -> PerturbationReference:
    return PerturbationReference.from_cells(
        torch.from_numpy(data.x),
        torch.from_numpy(data.group),
        num_perturbations=data.perturbations,
        scale=data.scale,
        targets=data.targets,
    )


def test_every_registered_metric_has_an_expectation() -> None:
    elsewhere = {s.name for s in list_specs("perturbation") if s.name.startswith("de_")}  # test_de_formulas
    elsewhere |= {"mse_debiased", "mse_debiased_ratio", "effect_size_debiased"}  # test_debiased_error
    elsewhere |= {"wmse", "weighted_r2_delta_pertmean"}  # test_weighted_error
    elsewhere |= {"energy_ratio", "edistance_pearson", "mmd_rbf", "sinkhorn", "variance_ratio"}  # test_cell_distance_*
    assert {s.name for s in list_specs("perturbation")} == set(EXPECTED) | elsewhere


@given(data=st.data())
def test_values_equal_numpy(data: st.DataObject) -> None:
    problem = data.draw(problems())
    params = {}
    for spec in (s for s in list_specs("perturbation") if s.name in EXPECTED):
        drawn = {p.name: data.draw(PARAMS[p.name], label=p.name) for p in spec.params if data.draw(st.booleans())}
        if problem.scale != "counts":
            drawn.pop("target_sum", None)
        params[spec.name] = drawn
    reference = reference_of(problem)
    panel = Panel({name: load_metric(name)(reference, **drawn) for name, drawn in params.items()})
    panel.update(x=torch.from_numpy(problem.y), group=torch.from_numpy(problem.predicted))
    for name, score in panel.results().items():
        expected = EXPECTED[name](problem, **params[name])
        np.testing.assert_allclose(score.units.numpy(), expected, rtol=1e-12, atol=1e-12, err_msg=name)
        assert score.value == pytest.approx(expected.mean(), rel=1e-12, abs=1e-12), name


@given(problem=problems())
def test_true_cells_beside_the_predicted_ones_are_as_good_as_a_reference(problem: Data) -> None:
    # Paired rows: the cells of the solution, each with a prediction of its own.
    rng = np.random.default_rng(len(problem.x))
    y = np.floor(problem.x * rng.lognormal(0, 0.5, problem.x.shape)) + 1
    x, y, group = torch.from_numpy(problem.x), torch.from_numpy(y), torch.from_numpy(problem.group)
    reference = reference_of(problem._replace(targets=[[]] * problem.perturbations))
    by_reference = Panel({name: load_metric(name)(reference) for name in EXPECTED})
    by_reference.update(x=y, group=group)
    paired = Panel(
        {name: load_metric(name)(num_perturbations=problem.perturbations, scale=problem.scale) for name in EXPECTED}
    )
    for part in np.array_split(np.arange(len(group)), 3):
        paired.update(x=y[part], target_x=x[part], group=group[part])
    for (name, ours), theirs in zip(paired.results().items(), by_reference.results().values(), strict=True):
        assert torch.equal(ours.units, theirs.units), name
