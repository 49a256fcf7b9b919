"""The table of options: names, kinds, defaults, and what is said about a wrong one."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any

import pytest

from lake_spark import Lake
from lake_spark.errors import ConfigError
from lake_spark.options import ENVIRONMENT_PREFIX, Options, camel_case, snake_case

FIELDS = {option.name: option for option in dataclasses.fields(Options)}
NUMBERS = [name for name, option in FIELDS.items() if not isinstance(option.default, (str, bool))]
WHOLE = [name for name in NUMBERS if isinstance(FIELDS[name].default, int)]
CHOSEN = [name for name, option in FIELDS.items() if option.metadata["choices"]]
BOUNDED = [name for name, option in FIELDS.items() if option.metadata["least"] is not None]


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


def another(name: str) -> Any:
    """A value of the option that is not its default."""
    option = FIELDS[name]
    if option.metadata["choices"]:
        return next(choice for choice in option.metadata["choices"] if choice != option.default)
    if isinstance(option.default, bool):
        return not option.default
    return "other" if isinstance(option.default, str) else option.default + 1


def test_without_options_everything_has_its_default() -> None:
    assert Options.of({}) == Options()


@pytest.mark.parametrize("name", FIELDS)
def test_both_spellings_of_a_name_mean_the_same(name: str) -> None:
    assert snake_case(camel_case(name)) == name
    assert snake_case(name) == name
    value = another(name)
    assert getattr(Options.of({name: value}), name) == value
    assert Options.of({camel_case(name): value}) == Options.of({name: value})


@pytest.mark.parametrize("name", FIELDS)
def test_spark_and_the_environment_pass_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = another(name)
    wanted = Options.of({name: value})
    assert Options.of({camel_case(name): str(value)}) == wanted
    monkeypatch.setenv(f"LAKE_{name.upper()}", str(value))
    assert Options.of({}) == wanted
    assert Options.of({name: FIELDS[name].default}) == Options(), "what is given goes before the environment"


def test_names_differ_in_every_spelling() -> None:
    assert len({camel_case(name).lower() for name in FIELDS}) == len(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_option_has_a_meaning_and_a_default_it_would_take(name: str) -> None:
    option = FIELDS[name]
    assert option.metadata["meaning"]
    assert Options.of({name: option.default}) == Options()
    assert type(option.default) in (str, bool, int, float)


@pytest.mark.parametrize("value", [None, True, [], "many", "", "nan", "inf", float("nan"), float("inf"), b"1", 1j])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_is_refused_with_the_options_name(name: str, value: Any) -> None:
    if value == b"1":
        value = bytearray(b"x")
    with pytest.raises(ConfigError, match=rf"option {name} takes a (whole )?number, not ") as caught:
        Options.of({name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [1000.5, "1000.5", "1e3"])
@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"option {name} takes a whole number, not "):
        Options.of({name: value})


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_keep_every_digit(name: str) -> None:
    assert getattr(Options.of({name: str(2**53 + 1)}), name) == 2**53 + 1
    assert getattr(Options.of({name: 1000.0}), name) == 1000


@pytest.mark.parametrize("value", [None, True, 1, 1.5, b"text", []])
@pytest.mark.parametrize("name", [name for name in FIELDS if isinstance(FIELDS[name].default, str)])
def test_what_is_no_text_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"option {name} takes text, not "):
        Options.of({name: value})


@pytest.mark.parametrize("name", CHOSEN)
def test_choices_are_named(name: str) -> None:
    choices = FIELDS[name].metadata["choices"]
    for choice in choices:
        assert getattr(Options.of({name: choice}), name) == choice
    for wrong in ("", "nonsense", choices[0].upper(), f" {choices[0]}"):
        with pytest.raises(ConfigError, match=f"option {name} is one of") as caught:
            Options.of({name: wrong})
        assert ", ".join(choices) in str(caught.value)
        assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("name", BOUNDED)
def test_minimums_are_named(name: str) -> None:
    least = FIELDS[name].metadata["least"]
    assert getattr(Options.of({name: least}), name) == least
    for wrong in (least - 1, str(least - 1)):
        with pytest.raises(ConfigError, match=rf"option {name} is {least} or more; not ") as caught:
            Options.of({name: wrong})
        assert repr(wrong) in str(caught.value)


def test_a_wrong_value_in_the_environment_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_LOAD_WORKERS", "many")
    with pytest.raises(ConfigError, match="option load_workers takes a whole number, not 'many'"):
        Lake("localhost")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("snapshots", "snapshot"), ("pendingTimeOuts", "pending_timeout"), ("redisRetry", "redis_retries"), ("x", None)],
)
def test_an_unknown_option_gets_one_warning_with_the_nearest_name(given: str, nearest: str | None) -> None:
    with pytest.warns(UserWarning, match=f"unknown option '{given}' is ignored") as caught:
        found = Options.of({given: "1", "lease": 5})
    assert len(caught) == 1
    message = str(caught[0].message)
    assert message.endswith(f"; did you mean {nearest!r}?" if nearest else "ignored")
    assert found == Options(lease=5.0)


def test_the_warning_points_at_the_call_of_lake() -> None:
    with pytest.warns(UserWarning, match="unknown option") as caught:
        Lake("localhost", comprssion="zstd")
    assert caught[0].filename == __file__


def test_an_unknown_variable_in_the_environment_is_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_HOUSE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Options.of({}) == Options()


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().lease = 1.0  # type: ignore[misc] # that is the point
