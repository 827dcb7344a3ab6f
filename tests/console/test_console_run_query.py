"""The words that find runs: any text is a search or is refused with a sentence, and quotes make any text a word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.errors import Invalid
from local_backend.services.run_query import LONGEST, MOST, parsed
from local_backend.store.run_lists import Term, TermField

#: Texts with many characters that have a meaning in a search.
TEXTS = st.text(st.sampled_from('abc 10:=<>-",.\n%_') | st.characters(exclude_categories=["Cs"]), max_size=60)


@given(TEXTS)
def test_any_text_is_a_search_or_is_refused(text: str) -> None:
    try:
        terms = parsed(text)
    except Invalid as problem:
        assert problem.code == "query.find" and str(problem)
        return
    assert len(terms) <= MOST and all(term.values and all(term.values) for term in terms)
    assert bool(terms) == bool(text.replace('"', "").strip())


@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters='"', include_characters=" "), min_size=1,
               max_size=50).filter(str.strip))
def test_quotes_make_any_text_a_word(text: str) -> None:
    assert parsed(f'"{text}"') == (Term(TermField.WORD, (text,)),)
    assert parsed(f'-"{text}"') == (Term(TermField.WORD, (text,), negated=True),)
    assert parsed(f'tag:"{text}" x')[1] == Term(TermField.WORD, ("x",))


@pytest.mark.parametrize(("text", "terms"), [
    ("a  b", [Term(TermField.WORD, ("a",)), Term(TermField.WORD, ("b",))]),
    ("name:x", [Term(TermField.NAME, ("x",))]), ('name:"my run"', [Term(TermField.NAME, ("my run",))]),
    ("-user:ada", [Term(TermField.USER, ("ada",), negated=True)]), ("tag:a,b", [Term(TermField.TAG, ("a", "b"))]),
    ("state:error", [Term(TermField.STATE, ("ERROR",))]), ("state:running", [
        Term(TermField.STATE, ("RECOVERING", "RUNNING"))]),
    ("lr=0.1", [Term(TermField.VALUE, ("0.1",), name="lr")]),
    ("--lr=0.1", [Term(TermField.VALUE, ("0.1",), name="lr")]),
    ("param.lr=0.1", [Term(TermField.VALUE, ("0.1",), name="lr", kind="param")]),
    ('note="a b"', [Term(TermField.VALUE, ("a b",), name="note")]),
    ("loss<1e-3", [Term(TermField.AMOUNT, ("0.001",), name="loss", operator="<")]),
    ("-accuracy>=1", [Term(TermField.AMOUNT, ("1.0",), negated=True, name="accuracy", operator=">=")]),
    ("f1>0.9", [Term(TermField.AMOUNT, ("0.9",), name="f1", operator=">")]),
    ("--lr<=1e-1", [Term(TermField.AMOUNT, ("0.1",), name="lr", operator="<=")]),
    ("-val/loss<.5", [Term(TermField.AMOUNT, ("0.5",), negated=True, name="val/loss", operator="<")]),
    ("metric.lr<1 param.lr>=2", [Term(TermField.AMOUNT, ("1.0",), name="lr", operator="<", kind="metric"),
                                 Term(TermField.AMOUNT, ("2.0",), name="lr", operator=">=", kind="param")]),
    ('"val loss"<0.5', [Term(TermField.AMOUNT, ("0.5",), name="val loss", operator="<")]),
    ('metric."a<b">2', [Term(TermField.AMOUNT, ("2.0",), name="a<b", operator=">", kind="metric")]),
    ("optimizer.lr<1", [Term(TermField.AMOUNT, ("1.0",), name="optimizer.lr", operator="<")]),
    ('"f1>0.9"', [Term(TermField.WORD, ("f1>0.9",))]),
    ("search:s -search:*", [Term(TermField.SEARCH, ("s",)), Term(TermField.SEARCH, ("*",), negated=True)]),
    ('search:"a b"', [Term(TermField.SEARCH, ("a b",))]),
    ("is:favorite", [Term(TermField.FAVORITE, ("favorite",))]), ("--verbose", [Term(TermField.WORD, ("--verbose",))]),
    ("image:v1", [Term(TermField.WORD, ("image:v1",))]), ('"never ends', [Term(TermField.WORD, ("never ends",))]),
    ("-", [Term(TermField.WORD, ("-",))]), ("name:", [Term(TermField.WORD, ("name:",))]), ('""', []), (" ", []),
])
def test_the_words_mean(text: str, terms: list[Term]) -> None:
    assert list(parsed(text)) == terms


@pytest.mark.parametrize("text", ["f1 > 0.9", "f1> 0.9", "f1 >0.9", '"val loss" < 1', "-lr >= 2"])
def test_a_comparison_with_spaces_is_refused(text: str) -> None:
    """Its words would find nothing, without a hint. A quoted sign is a word."""
    with pytest.raises(Invalid):
        parsed(text)
    assert parsed('">" "f1>"') == (Term(TermField.WORD, (">",)), Term(TermField.WORD, ("f1>",)))


def test_a_search_is_limited() -> None:
    assert len(parsed("x " * MOST)) == MOST and parsed("x" * LONGEST)
    for text in ("x " * (MOST + 1), "x" * (LONGEST + 1)):
        with pytest.raises(Invalid):
            parsed(text)
