"""The space of cell-level metrics: the right components, and the same bits whatever the order, layout or threads."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from prima_bench.metrics.errors import ReferenceDataError
from prima_bench.metrics.perturbation.cells import latent
from prima_bench.metrics.perturbation.cells.exact_product import SlicedRows, row_products
from prima_bench.metrics.perturbation.cells.expression import CellExpression, row_totals
from prima_bench.metrics.perturbation.cells.latent import latent_space, principal_axes, project, variable_genes
from prima_bench.metrics.perturbation.reference import PerturbationReference, Scale
from prima_bench.metrics.rows import RowMatrix, SparseRows

Array = np.ndarray


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def screen(seed: int, cells: int = 90, genes: int = 70, scale: Scale = "counts") -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.arange(cells) % 5)
    level = rng.lognormal(0, 1, genes) * np.exp(rng.normal(0, 0.7, (5, genes)))
    x = rng.poisson(level[group]).astype(np.float32)
    if scale == "log1p_cp10k":
        return np.log1p(x * rng.lognormal(0, 0.3, x.shape)), group
    x[:, 0] += 1
    return x, group


def reference_of(x: Array | torch.Tensor | SparseRows, group: Array, scale: Scale = "counts", **kwargs: object):
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    codes = torch.from_numpy(group)
    return PerturbationReference.from_cells(x, codes, num_perturbations=int(group.max()), scale=scale, **kwargs)


def comparable(x: Array, scale: Scale) -> Array:
    x = x.astype(np.float64)
    return x if scale == "log1p_cp10k" else np.log1p(1e4 * x / np.maximum(x.sum(axis=1, keepdims=True), 1))


def bits(*tensors: torch.Tensor) -> bytes:
    return b"".join(t.contiguous().numpy().tobytes() for t in tensors)


def projector(basis: Array) -> Array:
    return basis.T @ basis


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
@pytest.mark.parametrize(("cells", "genes"), [(400, 120), (30, 60), (300, 12)])
def test_the_space_is_that_of_a_principal_component_analysis(scale: Scale, cells: int, genes: int) -> None:
    x, group = screen(0, cells, genes, scale)
    space = latent_space(reference_of(x, group, scale))
    d = min(50, cells - 1, genes)
    assert space.basis.shape == (d, genes)
    dense = comparable(x, scale)
    theirs = PCA(n_components=d, svd_solver="full").fit(dense)
    np.testing.assert_allclose(projector(space.basis.numpy()), projector(theirs.components_), atol=1e-4)
    np.testing.assert_allclose(space.basis.numpy() @ space.basis.numpy().T, np.eye(d), atol=1e-12)
    np.testing.assert_allclose(space.cells.numpy(), dense @ space.basis.numpy().T, rtol=0, atol=1e-12)
    ours, largest = space.basis.numpy(), np.abs(space.basis.numpy()).argmax(axis=1)
    assert (ours[np.arange(d), largest] > 0).all()
    spread = space.cells.numpy().var(axis=0, ddof=1)
    np.testing.assert_allclose(spread, theirs.explained_variance_, rtol=1e-4)


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_the_genes_that_vary_most_make_the_space(monkeypatch: pytest.MonkeyPatch, scale: Scale) -> None:
    monkeypatch.setattr(latent, "GENES", 20)
    x, group = screen(1, scale=scale)
    # Ties, of which the first come first; on log scale not even the order of the cells may break them.
    x[:, 30:40] = x[::-1, 20:30] if scale == "log1p_cp10k" else x[:, 20:30]
    x[:, 60:] = 0
    reference = reference_of(x, group, scale)
    order = np.argsort(-comparable(x, scale).var(axis=0).round(9), kind="stable")
    assert variable_genes(reference).genes.tolist() == sorted(order[:20].tolist())
    space = latent_space(reference)
    np.testing.assert_allclose(
        space.cells.numpy(), comparable(x, scale)[:, space.genes.numpy()] @ space.basis.numpy().T, atol=1e-12
    )


@given(data=st.data(), scale=st.sampled_from(("counts", "log1p_cp10k")))
def test_order_layout_and_threads_give_the_same_bits(data: st.DataObject, scale: Scale) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x, group = screen(int(rng.integers(1000)), cells=int(rng.integers(6, 60)), genes=30, scale=scale)
    # Counts that are no whole numbers, too: their totals depend on the order of additions.
    x = x * rng.choice([1.0, 1.0 / 3.0, 1e-4], x.shape).astype(np.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    once = latent_space(reference_of(x, group, scale))
    moved = rng.permutation(len(x))
    given_x: torch.Tensor | SparseRows = torch.from_numpy(x[moved])
    layout = data.draw(st.integers(0, 3))
    if layout == 1:
        given_x = SparseRows.from_dense(torch.from_numpy(x[moved]))
    elif layout == 2:
        given_x = torch.from_numpy(x[moved]).T.contiguous().T
    elif layout == 3:
        given_x = torch.from_numpy(x[moved].astype(np.float64))
    torch.set_num_threads(data.draw(st.sampled_from((1, 2))))
    again = latent_space(reference_of(given_x, group[moved], scale, index=torch.from_numpy(moved)))
    torch.set_num_threads(before)
    assert bits(once.genes, once.basis, once.cells) == bits(again.genes, again.basis, again.cells)
    # Without ids, cells stand in another order, in the same space.
    loose = latent_space(reference_of(x[moved], group[moved], scale))
    assert bits(once.basis, once.cells[moved]) == bits(loose.basis, loose.cells)


def test_a_large_space_has_the_same_bits_for_one_and_two_threads(threads: None) -> None:
    rng = np.random.default_rng(3)
    group = np.arange(5000) % 4
    x = rng.poisson(rng.lognormal(-1, 1, (4, 700))[group]).astype(np.float32)
    x[:, 0] += 1
    answers = []
    for n, matrix in ((1, torch.from_numpy(x)), (2, SparseRows.from_dense(torch.from_numpy(x)))):
        torch.set_num_threads(n)
        space = latent_space(reference_of(matrix, group))
        assert torch.get_num_threads() == n
        answers.append(bits(space.basis, space.cells))
    assert answers[0] == answers[1]


def test_a_cell_has_the_same_coordinates_in_any_company(threads: None) -> None:
    x, group = screen(4)
    space = latent_space(reference_of(x, group))
    for n in (1, 2):
        torch.set_num_threads(n)
        for cell in (0, 41, 89):
            alone = CellExpression.of(RowMatrix([torch.from_numpy(x[cell : cell + 1])]), "counts")
            assert torch.equal(project(alone, space.genes, space.basis), space.cells[cell : cell + 1])


def test_it_is_made_once_and_goes_with_its_solution() -> None:
    reference = reference_of(*screen(5))
    assert latent_space(reference) is latent_space(reference)
    gc.collect()  # what earlier tests left
    known = len(latent._SPACES)
    del reference
    gc.collect()
    assert len(latent._SPACES) == known - 1


@pytest.mark.parametrize("n", [1, 60])
def test_components_tied_with_the_last_are_left_out_together(n: int) -> None:
    # 49 components stand out; the next n are tied, and more would not fit.
    variance = np.concatenate([100.0 - np.arange(49), np.full(n, 3.0), np.full(5, 1e-12)])
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(len(variance), len(variance))))[0]
    axes = principal_axes(torch.from_numpy(rotation @ np.diag(variance) @ rotation.T)).numpy()
    kept = 50 if n == 1 else 49
    np.testing.assert_allclose(projector(axes), projector(rotation.T[:kept]), atol=1e-9)


def test_components_that_are_all_tied_are_all_kept() -> None:
    assert principal_axes(3 * torch.eye(80, dtype=torch.float64)).shape == (80, 80)
    # The same in a solution: every cell has a gene of its own.
    x, group = np.eye(80, dtype=np.float32), np.arange(80) % 2
    assert latent_space(reference_of(x, group, "log1p_cp10k")).basis.shape == (79, 80)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e90])
def test_cells_that_are_all_alike_have_no_components(value: float) -> None:
    x, group = np.full((6, 4), value), np.arange(6) % 2
    space = latent_space(reference_of(x, group, "log1p_cp10k"))
    np.testing.assert_array_equal(space.cells.numpy(), np.broadcast_to(space.cells.numpy()[:1], space.cells.shape))


def test_one_cell_and_cells_without_counts_are_no_exception() -> None:
    x, group = np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 1.0]], dtype=np.float32), np.array([0, 1, 1])
    space = latent_space(reference_of(x, group))
    assert space.basis.shape == (1, 2)
    assert space.cells.flatten().tolist()[:2] == [0.0, 0.0]
    lonely = PerturbationReference(
        RowMatrix([torch.ones(1, 2)]), torch.tensor([1]), num_perturbations=1, scale="counts"
    )
    assert latent_space(lonely).cells.shape == (1, 0)


@pytest.mark.parametrize("scale", ["counts", "log1p_cp10k"])
def test_a_solution_beyond_all_bounds_is_the_solutions_fault(scale: Scale) -> None:
    x, group = screen(6)
    wide = x.astype(np.float64)
    wide[group == 3, :2] = 1e308
    with pytest.raises(ReferenceDataError, match="too large to be scored in group 3"):
        latent_space(reference_of(wide, group, scale))


@given(data=st.data())
def test_products_are_exact_and_depend_on_their_two_rows_alone(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    k = data.draw(st.sampled_from((1, 2, 50, 257, 2000)))
    size = 10.0 ** data.draw(st.sampled_from((0, 100, -120)))
    a, b = (torch.from_numpy(size * rng.normal(size=(n, k)) * rng.lognormal(0, 2, (n, k))) for n in (7, 40))
    a[2], b[3] = 0.0, a[1]
    ours = row_products(SlicedRows.of(a), SlicedRows.of(b))
    wide = a.numpy().astype(np.longdouble) @ b.numpy().astype(np.longdouble).T
    bound = np.abs(a.numpy()).max(axis=1, keepdims=True) * np.abs(b.numpy()).max(axis=1) * k
    assert (np.abs(ours.numpy() - wide) <= 4e-16 * bound + 2e-16 * np.abs(wide)).all()
    rows, columns = rng.permutation(7)[:3], rng.permutation(40)[: data.draw(st.integers(1, 40))]
    part = row_products(SlicedRows.of(a[rows]), SlicedRows.of(b[columns]))
    assert torch.equal(part, ours[rows][:, columns])
    assert torch.equal(row_products(SlicedRows.of(b), SlicedRows.of(a)), ours.T)


@pytest.mark.parametrize("whole", [True, False])
def test_totals_do_not_depend_on_layout_company_or_threads(threads: None, whole: bool) -> None:
    rng = np.random.default_rng(0)
    shape = (5, 70_001)
    x = rng.poisson(3, shape) * (1.0 if whole else rng.lognormal(0, 6, shape))
    block = torch.from_numpy(x.astype(np.float32))
    totals = row_totals(block)
    np.testing.assert_allclose(totals.numpy(), block.double().numpy().sum(axis=1), rtol=1e-13)
    torch.set_num_threads(2)
    assert torch.equal(totals, row_totals(block.T.contiguous().T))
    assert torch.equal(totals, torch.cat([row_totals(row[None].double()) for row in block]))
