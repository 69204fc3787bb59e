"""Opening a solution of perturbed cells; the named cells of a registered dataset."""

from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest

from prima_bench.tasks.baselines import run_baseline
from prima_bench.tasks.errors import DataError, PredictionError, UsageError
from prima_bench.tasks.evaluation import Evaluation

TASK = "perturbation_prediction"
PANEL = ["pds_cosine", "pearson_delta", "mae"]


@pytest.mark.parametrize("missing", ["perturbation_key", "control", "scale"])
def test_nothing_about_a_solution_is_guessed(screen: Any, missing: str) -> None:
    with pytest.raises(UsageError, match=f"{missing}= must be given"):
        screen.evaluation(**{missing: None})


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"perturbation_key": "targt"}, "no column obs\\['targt'\\]"),
        ({"control": "Ctrl"}, "no cells labelled 'Ctrl'"),
        ({"scale": "cpm"}, "scale cannot be 'cpm'"),
        ({"label_key": "x"}, "unknown option 'label_key'"),
        ({"dataset": "perturbsim"}, "not both"),
        ({"metrics": "mae(target_sum=-1)", "scale": "log1p_cp10k"}, "."),
    ],
)
def test_wrong_options_name_what_there_is(screen: Any, options: dict[str, Any], seen: str) -> None:
    with pytest.raises((UsageError, DataError), match=seen) as caught:
        screen.evaluation(**options)
    assert caught.value.hint


def solution_of(screen: Any, **parts: Any) -> anndata.AnnData:
    cells = screen.solution
    return anndata.AnnData(parts.get("x", cells.X), obs=parts.get("obs", cells.obs), var=parts.get("var", cells.var))


def test_solutions_that_cannot_be_used(screen: Any, log_screen: Any, tmp_path: Any) -> None:
    obs = screen.solution.obs.astype(object)
    obs.iloc[3, 0] = None
    with pytest.raises(DataError, match="1 row without a perturbation label: 'real3'"):
        screen.evaluation(solution=solution_of(screen, obs=obs))
    with pytest.raises(DataError, match="all cells of the solution are labelled 'ctrl'"):
        screen.evaluation(solution=screen.solution[:9].copy())
    with pytest.raises(DataError, match=r"the solution: fractions .* in 33 rows"):
        screen.evaluation(solution=solution_of(screen, x=log_screen.solution.X))
    with pytest.raises(DataError, match=r"the solution: only whole numbers .* in 33 rows"):
        log_screen.evaluation(solution=screen.solution)
    x = log_screen.solution.X.copy()
    x.data[7] = np.nan
    with pytest.raises(DataError, match="NaN"):
        log_screen.evaluation(solution=solution_of(log_screen, x=x))
    with pytest.raises(UsageError, match="must be an AnnData"):
        screen.evaluation(solution={"x": 1})
    (tmp_path / "s.h5ad").write_bytes(b"no")
    with pytest.raises(DataError, match="cannot be read as h5ad"):
        screen.evaluation(solution=tmp_path / "s.h5ad")


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_a_solution_with_repeated_genes(screen: Any) -> None:
    var = pd.DataFrame(index=["AHR", *screen.solution.var_names[:-1]])
    with pytest.raises(DataError, match="names 1 gene more than once: 'AHR'"):
        screen.evaluation(solution=solution_of(screen, var=var))


@pytest.mark.filterwarnings("ignore:Observation names are not unique")
def test_cell_names_of_a_solution_of_ones_own_do_not_matter(screen: Any) -> None:
    obs = screen.solution.obs.set_axis(["cell"] * 33)
    assert screen.result(solution=solution_of(screen, obs=obs)).result_digest == screen.result().result_digest


def test_the_digest_of_a_solution_is_over_its_content(screen: Any) -> None:
    base = screen.result()
    assert base.dataset.name == "local"
    assert base.dataset.solution_digest.removeprefix("sha256:").startswith(base.dataset.version)
    assert len(base.dataset.version) == 12
    shuffled = screen.solution[np.random.default_rng(0).permutation(33)].copy()
    assert screen.result(solution=shuffled).result_digest == base.result_digest

    x = screen.solution.X.copy()
    x.data[0] += 1
    obs = screen.solution.obs.copy()
    obs.iloc[[0, -1], 0] = obs.iloc[[-1, 0], 0].to_numpy()
    others = [
        {"solution": solution_of(screen, x=x)},
        {"solution": solution_of(screen, obs=obs)},
        {"target_map": None},
    ]
    digests = {screen.result(**changes).dataset.solution_digest for changes in others}
    assert len(digests | {base.dataset.solution_digest}) == 4


@pytest.mark.parametrize("name", ["screen", "log_screen"])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_order_of_genes_and_cells_decides_nothing(request: Any, name: str, sparse: bool) -> None:
    data = request.getfixturevalue(name)
    random = np.random.default_rng(3)
    cells = data.solution[random.permutation(33), random.permutation(12)].copy()
    cells.X = cells.X if sparse else cells.X.toarray()
    metrics = [*data.metrics, "mse(exclude_targets=own)", "pds_l2"]
    expected = data.result(metrics=metrics)
    result = data.result(solution=cells, metrics=metrics)
    assert result.dataset == expected.dataset
    assert result.predictions == expected.predictions
    assert result.units == expected.units  # to the last bit
    assert result.result_digest == expected.result_digest


def test_columns_without_names_lie_in_the_order_of_the_solution(screen: Any, refused: Any) -> None:
    order = np.random.default_rng(4).permutation(12)
    turned = screen.predictions[:, order]
    run = screen.evaluation(solution=screen.solution[:, order].copy())
    run.update(turned.X.toarray(), ids=turned.obs_names, perturbation=turned.obs["target"])
    assert run.compute().result_digest == screen.result().result_digest


def test_targets_that_are_not_known_are_flagged_where_they_matter(screen: Any) -> None:
    assert screen.result().flags == []
    assert screen.result(target_map=None).flags == ["targets_not_excluded"]
    assert screen.result(target_map=None, metrics="mae").flags == []
    assert screen.result(target_map="none").flags == []
    result = screen.result(target_map=None, metrics="mae(exclude_targets=own)")
    assert result.flags == ["targets_not_excluded"]


def test_targets_none_of_which_was_measured_are_flagged(screen: Any) -> None:
    named = {"AHR": "ENSG00000106546", "KLF1": ["KLF1", "ENSG2"], "AHR+KLF1": "ENSG1+ENSG2", "drug X": []}
    assert screen.result(target_map=named).flags == ["targets_not_measured: 2 of 4"]
    assert screen.result(target_map=named, metrics="mae").flags == []


def test_a_panel_for_counts_names_the_metric_that_asks_for_them(log_screen: Any) -> None:
    with pytest.raises(
        UsageError, match=r"metric pds_cosine\(.*target_sum=50000.*no meaning on scale log1p_cp10k"
    ) as caught:
        log_screen.evaluation(metrics="vcc2026")
    assert "total of counts" in caught.value.hint


def test_predictions_that_are_all_zero_are_flagged(screen: Any, log_screen: Any) -> None:
    for data in (screen, log_screen):
        zero = data.predictions.copy()
        zero.X = zero.X * 0
        assert data.result(zero).flags == ["all_predictions_zero"]
        assert data.result(zero[:5], zero[5:]).result_digest == data.result(zero).result_digest
        zero.X = zero.X.toarray()
        zero.X[16, 11] = 1
        assert data.result(zero).flags == []
        assert data.result(zero[:16], zero[16:]).flags == []


def test_a_test_split_handed_in_as_it_is_is_flagged(registered: Evaluation) -> None:
    from prima_bench.tasks.artifacts import fetch_data, load

    registered.reset()
    registered.update(load(fetch_data(TASK)[1], TASK, "test"))
    assert "all_predictions_zero" in registered.compute().flags


def test_control_cells_alone_are_no_predictions(screen: Any, registered: Evaluation, control: anndata.AnnData) -> None:
    run = screen.evaluation()
    run.update(screen.solution[:9])
    with pytest.raises(PredictionError, match="only control cells, which are taken from the solution") as caught:
        run.compute()
    assert caught.value.hint == "Predict every perturbation of the solution."
    run.update(screen.predictions)  # so that a shard may hold nothing else
    assert run.compute().result_digest == screen.result().result_digest
    run.reset()
    with pytest.raises(PredictionError) as nothing:
        run.compute()
    assert nothing.value.message == "no predictions were handed in"
    registered.reset()
    registered.update(control)
    with pytest.raises(PredictionError, match="only control cells"):
        registered.compute()


@pytest.mark.parametrize("kind", ["int64", "float64", "category"])
def test_perturbations_that_are_numbers(screen: Any, refused: Any, kind: str) -> None:
    numbers = {label: i for i, label in enumerate(screen.solution.obs["target"].unique())}

    def numbered(cells: anndata.AnnData, kind: str) -> anndata.AnnData:
        codes = cells.obs["target"].map(numbers).astype("int64")
        obs = pd.DataFrame({"target": codes.astype(kind)}, index=cells.obs_names)
        return anndata.AnnData(cells.X, obs=obs, var=cells.var)

    arguments = {"solution": numbered(screen.solution, "str"), "control": "0", "target_map": None}
    with pytest.raises(DataError, match=r"perturbation labels are of type \w+, not names") as caught:
        screen.evaluation(**{**arguments, "solution": numbered(screen.solution, kind)})
    assert "astype(str)" in caught.value.hint
    run = screen.evaluation(**arguments)
    with pytest.raises(PredictionError, match=r"perturbation labels are of type \w+, not names") as refusal:
        run.update(numbered(screen.predictions, kind))
    assert "astype(str)" in refusal.value.hint
    run.update(numbered(screen.predictions, "str"))
    assert run.compute().scores["mae"].value == screen.result().scores["mae"].value


def test_target_genes_are_left_out(log_screen: Any) -> None:
    cells = log_screen.solution[log_screen.solution.obs["target"] != "ctrl"].copy()
    cells.X = cells.X.multiply(np.arange(12) >= 2).tocsr()  # wrong in the two target genes, else perfect
    scores = log_screen.result(cells, metrics=["mae", "mae(exclude_targets=own)", "mae(exclude_targets=panel)"]).scores
    assert scores["mae"].value > scores["mae(exclude_targets=own)"].value > 0
    assert scores["mae(exclude_targets=panel)"].value == 0
    assert scores["mae(exclude_targets=panel)"].params == {"exclude_targets": "panel"}


def test_one_real_cell_per_perturbation_is_enough(screen: Any) -> None:
    one = ~screen.solution.obs["target"].duplicated().to_numpy()
    result = screen.result(solution=screen.solution[one].copy())
    assert result.units.n_obs == [1, 1, 1, 1]
    assert result.scores["mae"].status == "ok"


@pytest.fixture(scope="module")
def pasted() -> anndata.AnnData:
    return run_baseline(TASK, "paste_control")


@pytest.fixture(scope="module")
def registered(pasted: anndata.AnnData) -> Evaluation:
    run = Evaluation(TASK, metrics=PANEL, device="cpu")
    run.update(pasted)
    return run


@pytest.fixture
def control() -> anndata.AnnData:
    from prima_bench.tasks.artifacts import fetch_data, load

    test = load(fetch_data(TASK)[1], TASK, "test")
    return test[~test.obs["to_predict"].to_numpy()].copy()


def digest(run: Evaluation, *shards: Any) -> str:
    run.reset()
    for shard in shards:
        run.update(shard)
    return run.compute().result_digest


def test_named_cells_in_any_form(registered: Evaluation, pasted: anndata.AnnData, control: anndata.AnnData) -> None:
    expected = digest(registered, pasted)
    bare = anndata.AnnData(pasted.X, obs=pd.DataFrame(index=pasted.obs_names), var=pd.DataFrame(index=pasted.var_names))
    assert digest(registered, bare) == expected
    assert digest(registered, bare[::-1, ::-1].copy()) == expected
    control.obs = control.obs[[]]
    with_control = anndata.concat([bare, control[:, bare.var_names]])
    assert digest(registered, with_control) == expected
    assert digest(registered, control[:5].copy(), bare) == expected
    registered.reset()
    registered.update(bare.X.toarray(), ids=bare.obs_names)
    assert registered.compute().result_digest == expected


def test_control_cells_are_not_even_checked(
    registered: Evaluation, pasted: anndata.AnnData, control: anndata.AnnData
) -> None:
    expected = digest(registered, pasted)
    wild = anndata.AnnData(np.full(control.shape, np.nan, dtype=np.float32), obs=control.obs, var=control.var)
    assert digest(registered, wild, pasted) == expected


def test_missing_and_unknown_cells(registered: Evaluation, pasted: anndata.AnnData) -> None:
    first = str(pasted.obs_names[-1])
    with pytest.raises(PredictionError, match=f"1 of {pasted.n_obs} cells not predicted: {first!r}"):
        digest(registered, pasted[:-1].copy())
    renamed = pasted.copy()
    renamed.obs_names = [f"{name}-1" for name in pasted.obs_names]
    with pytest.raises(PredictionError, match=f"{pasted.n_obs} of {pasted.n_obs} cells not found in the solution"):
        registered.update(renamed)


def test_repeats_count_once_even_within_an_update(registered: Evaluation, pasted: anndata.AnnData) -> None:
    expected = digest(registered, pasted)
    rows = np.r_[np.arange(pasted.n_obs), [0, 0, 7]]
    registered.reset()
    registered.update(pasted.X[rows], ids=pasted.obs_names[rows])
    result = registered.compute()
    assert (result.predictions.duplicates_dropped, result.result_digest) == (3, expected)
    changed = pasted[:2].copy()
    changed.X = changed.X * 3
    with pytest.raises(PredictionError, match="2 rows came more than once with different content") as caught:
        registered.update(changed)
    assert "samplers pad" in caught.value.hint
    assert registered.compute().result_digest == expected


def test_an_obs_column_that_contradicts_the_solution(registered: Evaluation, pasted: anndata.AnnData) -> None:
    from prima_bench.tasks.registry import get_dataset

    key = get_dataset(task=TASK).spec.options["perturbation_key"]
    reordered = pasted.copy()
    reordered.obs[key] = pasted.obs[key].to_numpy()[::-1]
    with pytest.raises(PredictionError, match="under another perturbation than in the solution") as caught:
        registered.update(reordered)
    assert "where the solution has" in caught.value.message


def test_options_of_ones_own_are_refused_beside_a_dataset() -> None:
    with pytest.raises(UsageError, match="only a solution of your own takes 'control'"):
        Evaluation(TASK, control="x")


def test_a_registered_solution_is_read_once_for_all_that_hold_it() -> None:
    first, second = (Evaluation("perturbation_prediction", metrics="mae", device="cpu", model=m) for m in "ab")
    assert first._problem._solution is second._problem._solution
    assert first._problem is not second._problem


def test_a_solution_of_ones_own_is_read_for_each_evaluation(screen: Any) -> None:
    first, second = screen.evaluation(metrics="mae"), screen.evaluation(metrics="mae")
    assert first._problem._solution is not second._problem._solution


@pytest.mark.parametrize(("typed", "meant"), [("datset", "dataset"), ("metric", "metrics"), ("solutions", "solution")])
def test_a_misspelt_argument_is_told_from_an_option(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        Evaluation(TASK, **{typed: "x"})
    assert caught.value.hint == f"Did you mean {meant}=?"


def test_a_solution_that_is_already_open_still_checks_the_options_of_the_next() -> None:
    held = Evaluation(TASK, metrics="mae", device="cpu")
    with pytest.raises(UsageError, match="unknown option 'scores'"):
        Evaluation(TASK, metrics="mae", device="cpu", scores="logit")
    assert held is not None
