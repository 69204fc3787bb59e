"""Dataset ``pbmc68k``: 700 labelled blood cells, and the recipe that makes it from a file in scanpy's wheel."""

from pathlib import Path
from typing import TYPE_CHECKING

from prima_bench.tasks.specs import ArtifactSpec, DatasetSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SPEC = DatasetSpec(
    name="pbmc68k",
    version="1.0.0",
    task="cell_type_annotation",
    title="PBMC 68k, reduced",
    summary="700 peripheral blood mononuclear cells of one healthy donor, 765 variable genes, ten cell types.",
    artifacts=(
        ArtifactSpec(
            role="train",
            uri="package://prima_bench.tasks/data/pbmc68k-1.0.0/train.h5ad",
            sha256="fa5ed681597ffe1394c7f65bd8b0dbf80341e8ccbf9a3cec0c00511527630026",
            size=341_401,
            contents='420 cells with `obs["cell_type"]`; `X` is log1p of counts per 10,000.',
        ),
        ArtifactSpec(
            role="test",
            uri="package://prima_bench.tasks/data/pbmc68k-1.0.0/test.h5ad",
            sha256="435498fbc524d697c30d709b912cd0e23abafa0eec3aaf00618261ed7c8c9056",
            size=241_656,
            contents="280 cells without labels; `X` as in train.",
        ),
        ArtifactSpec(
            role="solution",
            uri="package://prima_bench.tasks/data/pbmc68k-1.0.0/solution.h5ad",
            sha256="7ea3e917237b5180bcd7649e63b186a4f289a500e7938111f5177212109c0d3b",
            size=35_096,
            contents='`obs["cell_type"]` of the test cells and the vocabulary `uns["classes"]`; no expression.',
        ),
    ),
    options={"label_key": "cell_type"},
    source=(
        '10x Genomics, "Fresh 68k PBMCs (Donor A)", https://www.10xgenomics.com/datasets/'
        "fresh-68-k-pbm-cs-donor-a-1-standard-1-1-0; subsampled and log-normalised by the authors of scanpy, in whose "
        "wheel (BSD-3-Clause) it lies as `10x_pbmc68k_reduced.h5ad`."
    ),
    licence="CC-BY-4.0",
    licence_url="https://creativecommons.org/licenses/by/4.0/",
    citation=(
        "Zheng GXY et al. Massively parallel digital transcriptional profiling of single cells. "
        "Nature Communications 8, 14049 (2017). https://doi.org/10.1038/ncomms14049"
    ),
    organism="Homo sapiens",
    modality="scRNA-seq",
    split=(
        "All cells come from one donor, so the split is by cell, not by donor: within each class 40 % of the cells, at "
        "least two, drawn with a fixed seed, are the test cells."
    ),
    counts={"cells": 700, "train_cells": 420, "test_cells": 280, "genes": 765, "classes": 10, "donors": 1},
    notes=(
        "- The labels (`bulk_labels` in the source) were given by similarity of expression to purified populations, "
        "so they are themselves derived from expression; they are no independent ground truth.\n"
        "- The source is public and cells keep their barcodes, so the test labels can be looked up. This set is for "
        "learning and testing the tool; it cannot settle which of two good models is better.\n"
        "- Genes were chosen, and values rounded to three decimals, by the source. Its clustering, embedding, "
        "marker genes, cell cycle scores and scaled matrix were left out.\n"
        "- The rarest class has 3 test cells, so one cell moves its F1 a lot, and macro F1 with it."
    ),
)

_SOURCE = "datasets/10x_pbmc68k_reduced.h5ad"
_SOURCE_SHA256 = "863e19914ab2d4ba97edc9623ac3a343c0461f1e40b121bfb5fa92638b22e9bd"
_SOURCE_LABELS = "bulk_labels"
_TEST_SHARE = 0.4
_SEED = 68


def build(directory: Path) -> None:
    """Write ``train.h5ad``, ``test.h5ad`` and ``solution.h5ad``.

    Needs scanpy installed, for the file in its wheel; scanpy itself is not imported.

    Raises:
        DataError: If the file is not there or is another one.
    """
    import anndata
    import numpy as np
    import pandas as pd
    from scipy.sparse import csr_matrix

    from prima_bench.tasks.recipes import installed_file, write_artifact

    source = anndata.read_h5ad(installed_file("scanpy", _SOURCE, sha256=_SOURCE_SHA256))
    source = source[np.argsort(source.obs_names.to_numpy(dtype=str), kind="stable")]
    labels = source.obs[_SOURCE_LABELS].astype(str).to_numpy(dtype=str)
    classes = np.unique(labels)
    x = csr_matrix(source.raw.X, dtype=np.float32)
    x.sort_indices()
    is_test = _draw_test(labels)
    for split, rows in (("train", ~is_test), ("test", is_test), ("solution", is_test)):
        obs = pd.DataFrame(index=source.obs_names[rows].astype(object))
        if split != "test":
            obs["cell_type"] = pd.Categorical(labels[rows], categories=classes)
        if split == "solution":
            cells = anndata.AnnData(obs=obs, uns={"classes": classes.astype(object)})
        else:
            cells = anndata.AnnData(X=x[rows], obs=obs, var=pd.DataFrame(index=source.raw.var_names.astype(object)))
        cells.uns.update(dataset=SPEC.key, split=split)
        write_artifact(cells, directory / f"{split}.h5ad")


def _draw_test(labels: "npt.NDArray[np.str_]") -> "npt.NDArray[np.bool_]":
    import numpy as np

    random = np.random.RandomState(_SEED)
    is_test = np.zeros(len(labels), dtype=bool)
    for name in np.unique(labels):
        rows = np.flatnonzero(labels == name)
        is_test[random.permutation(rows)[: max(2, round(_TEST_SHARE * len(rows)))]] = True
    return is_test
