"""References to metrics are read, checked and written in one form; specs cannot contradict themselves."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prima_bench.metrics.errors import (
    ConflictingRowsError,
    InputError,
    MetricError,
    MetricNameError,
    ReferenceDataError,
    SyncError,
)
from prima_bench.metrics.spec import MetricRef, MetricSpec, Param, resolve_ref, split_ref

FACTS = {
    "name": "own",
    "version": 2,
    "inputs": "classification",
    "implementation": "Own",
    "title": "t",
    "summary": "s",
    "formula": "f",
    "direction": "max",
    "range": (0.0, 1.0),
    "perfect": 1.0,
    "chance": 0.5,
    "level": "unit",
    "unit": "class",
    "undefined": "never",
    "references": (),
}
SPEC = MetricSpec(
    **FACTS,
    params=(
        Param(name="k", default=3),
        Param(name="share", default=0.5),
        Param(name="exact", default=True),
        Param(name="side", default="left", choices=("left", "right")),
        Param(name="bins", default=5, range=(1, 100)),
        Param(name="weight", default=0.0, range=(0.0, None)),
    ),
)
VALUES = {
    "k": st.integers(1 - 2**31, 2**31 - 1),
    "bins": st.integers(1, 100),
    "weight": st.floats(0.0, allow_infinity=False),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "exact": st.booleans(),
    "side": st.sampled_from(["left", "right"]),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_a_reference_survives_being_written_and_read(params):
    ref = MetricRef("own", {k: v for k, v in params.items() if v != {p.name: p.default for p in SPEC.params}[k]})
    again = resolve_ref(str(ref), SPEC)
    assert again == ref
    assert hash(again) == hash(ref)
    assert str(again) == str(ref)
    assert pickle.loads(pickle.dumps(ref)) == copy.deepcopy(ref) == ref  # noqa: S301


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("own", "own"),
        ("own()", "own"),
        (" own ( side = right , k=7 ) ", "own(k=7, side=right)"),
        ("own(k=3, share=0.5, exact=TRUE, side=left)", "own"),
        ("own(share=1)", "own(share=1.0)"),
        ("own(exact=False)", "own(exact=false)"),
        ("\town(\n  k=7,\n)\r\n", "own(k=7)"),
        ("own(k=+7)", "own(k=7)"),
        ("own(k=007)", "own(k=7)"),
        ("own(share=-0.0)", "own(share=0.0)"),
        ("own(weight=-0)", "own"),
        ("own(share=1e-07)", "own(share=1e-07)"),
        ("own(share=.25)", "own(share=0.25)"),
        ("own(share=2.)", "own(share=2.0)"),
    ],
)
def test_references_have_one_canonical_form(text, canonical):
    assert str(resolve_ref(text, SPEC)) == canonical


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("", "is not a metric reference", "name(param=value"),
        ("\u00a0own", "is not a metric reference", "name(param=value"),
        ("own own", "is not a metric reference", "name(param=value"),
        ("own(\u00a0)", "is not one param=value", "name(param=value"),
        ("own(k=1", "is not a metric reference", "name(param=value"),
        ("own(k=(1))", "is not a metric reference", "name(param=value"),
        ("own(k)", "'k' in 'own(k)' is not one param=value", "name(param=value"),
        ("own(k=)", "is not one param=value", "name(param=value"),
        ("own(k=1, k=2)", "is not one param=value", "name(param=value"),
        ("own(depth=1)", "has no parameter 'depth'", "It takes k, share, exact, side, bins, weight."),
        ("own(k=1.5)", "parameter k='1.5' is not a whole number", "The default is 3."),
        ("own(k=1_0)", "parameter k='1_0' is not a whole number", "The default is 3."),
        ("own(k=1 0)", "is not a whole number", "The default is 3."),
        ("own(k=\u0661\u0660)", "is not a whole number", "The default is 3."),
        ("own(k=\uff17)", "is not a whole number", "The default is 3."),
        ("own(k=\u00a07)", "is not a whole number", "The default is 3."),
        ("own(k=7\u2003)", "is not a whole number", "The default is 3."),
        ("own(k=7\x1f)", "is not a whole number", "The default is 3."),
        ("own(k=0x7)", "is not a whole number", "The default is 3."),
        ("own(k=--7)", "is not a whole number", "The default is 3."),
        (f"own(k={'9' * 5000})", "is not a whole number", "The default is 3."),
        ("own(share=nan)", "parameter share='nan' is not a number", "The default is 0.5."),
        ("own(share=inf)", "is not a number", "The default is 0.5."),
        ("own(share=1e999)", "is not a number", "The default is 0.5."),
        ("own(share=1_0.5)", "is not a number", "The default is 0.5."),
        ("own(share=\u0661.5)", "is not a number", "The default is 0.5."),
        ("own(share=.)", "is not a number", "The default is 0.5."),
        ("own(exact=1)", "parameter exact='1' is not true or false", "The default is true."),
        ("own(side=up)", "parameter side cannot be 'up'", "Choose one of left, right."),
    ],
)
def test_a_bad_reference_says_what_is_wrong_and_what_is_right(text, words, hint):
    with pytest.raises(MetricNameError) as caught:
        resolve_ref(text, SPEC)
    assert words in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("own(bins=0)", "It is at least 1 and at most 100."),
        ("own(bins=101)", "It is at least 1 and at most 100."),
        ("own(weight=-1e-9)", "It is at least 0."),
        ("own(k=2147483648)", "It is at most 2147483647 in size."),
        ("own(k=-2147483648)", "It is at most 2147483647 in size."),
    ],
)
def test_a_number_out_of_range_is_no_unknown_name(text, hint):
    with pytest.raises(MetricError, match="cannot be") as caught:
        resolve_ref(text, SPEC)
    assert not isinstance(caught.value, MetricNameError)
    assert caught.value.hint == hint


@given(st.text())
def test_no_text_is_read_as_a_number_unless_it_is_one(text):
    for param, kind in ((Param(name="k", default=3), int), (Param(name="share", default=0.5), float)):
        try:
            value = param.parse(text)
        except MetricError:
            continue
        assert type(value) is kind
        assert text.isascii()
        assert not set(text) - set("0123456789+-.eE")
        assert value == float(text)


def test_names_are_split_off_even_where_they_cannot_exist():
    assert split_ref("pearson-delta(k=1)") == ("pearson-delta", {"k": "1"})
    assert split_ref("PearsonDelta") == ("PearsonDelta", {})


def test_there_is_one_zero():
    assert str(MetricRef("own", {"share": -0.0})) == "own(share=0.0)"


def test_a_metric_without_parameters_says_so():
    with pytest.raises(MetricNameError) as caught:
        resolve_ref("own(k=1)", MetricSpec(**FACTS))
    assert caught.value.hint == "It takes no parameters."


def test_parameters_of_a_reference_cannot_be_changed():
    given = {"k": 1}
    ref = MetricRef("own", given)
    given["k"] = 2
    assert ref.params["k"] == 1
    with pytest.raises(TypeError):
        ref.params["k"] = 2


def test_splitting_keeps_the_raw_text():
    assert split_ref("own(side=a b, k=-1)") == ("own", {"side": "a b", "k": "-1"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "Own"}, "the name is not lower_snake_case"),
        ({"version": 0}, "whole number from 1"),
        ({"version": True}, "whole number from 1"),
        ({"direction": "up"}, "neither max nor min"),
        ({"level": "cell"}, "neither unit nor global"),
        ({"unit": None}, "a unit is named exactly when"),
        ({"level": "global"}, "a unit is named exactly when"),
        ({"perfect": 2.0}, "perfect value lies outside"),
        ({"perfect": -1.0}, "perfect value lies outside"),
        ({"params": (Param(name="k", default=1), Param(name="k", default=2))}, "two parameters have one name"),
    ],
)
def test_a_spec_cannot_contradict_itself(change, words):
    with pytest.raises(ValueError, match=words):
        MetricSpec(**{**FACTS, **change})


def test_a_parameter_cannot_contradict_itself():
    with pytest.raises(ValueError, match="the default 'up' is not among its choices"):
        Param(name="side", default="up", choices=("left", "right"))
    with pytest.raises(ValueError, match="'Top K' is not lower_snake_case"):
        Param(name="Top K", default=1)
    with pytest.raises(ValueError, match="the default None is no text, number or truth value"):
        Param(name="k", default=None)
    with pytest.raises(ValueError, match="the default 0 is out of its range"):
        Param(name="k", default=0, range=(1, None))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MetricError("m", hint="h"), 5),
        (InputError("m", hint="h"), 5),
        (ConflictingRowsError("m", rows=[1, 2], hint="h"), 5),
        (ReferenceDataError("m", hint="h"), 4),
        (SyncError("m", hint="h"), 5),
        (MetricNameError("m", nearest=["a"], hint="h"), 3),
    ],
)
def test_errors_travel_between_processes_with_all_they_carry(error, code):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert isinstance(again, ValueError)
    assert (str(again), again.message, again.hint) == ("m\nhint: h", "m", "h")
    assert (again.exit_code, vars(again)) == (code, vars(error))
