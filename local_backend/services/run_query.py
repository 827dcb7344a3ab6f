"""The words that find execs: `state:running tag:best lr=0.1 digits`.

    words of a name                every word must be in the name, id, user, framework, state, a tag or the words of the
                                   program
    "two words"                    the same for a text with spaces, and for a text that contains :, = or < itself
    name: id: user: framework:     of this field alone; NAME:VALUE. id:7 is the id that ends with -7
    state: tag:                    exactly this state or tag; state:running,pending is one of several
    search:                        an experiment of the search of this name; search:* is one of any search
    is:favorite                    a favorite of the user that searches
    lr=0.1                         a parameter of the program: --lr 0.1, --lr=0.1 or lr=0.1; or the last value of a
                                   metric. Numbers are equal in any spelling: 0.1, .1 and 1e-1
    f1>0.9 "val loss"<=0.1         the last value of a metric of an ended exec or, if it has no such metric, a parameter
                                   of the program; with <, <=, > or >=
    metric.lr<0.1 param.lr=0.1     of this kind alone
    -tag:old                       not this; a minus stands before any of these

All words must fit. Upper and lower case are the same, except in tags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dlicmd.contract import states
from local_backend.errors import Invalid
from local_backend.run_values import amount, named
from local_backend.store import run_lists
from local_backend.store.run_lists import Term, TermField
from local_backend.store.states import meant

#: Maximum number of characters, and of terms.
LONGEST, MOST = 500, 20
#: A minus, unless two begin the name of an option; then text with quoted parts. A quote without an end extends to the
#: end of the search.
_TOKEN = re.compile(r'(-(?!-))?((?:"[^"]*"?|[^\s"])+)')
_QUOTED = re.compile(r'"[^"]*"?')
_FIELD = re.compile(r"([a-z]+):(.+)", re.DOTALL)
#: A comparison. Quoted characters are NUL here.
_AMOUNT = re.compile(r"-{0,2}((?:[^\W\d]|\0)[\w./@%\0-]*)(<=|>=|<|>)(.+)", re.DOTALL)
#: A part of a comparison that is written with spaces.
_TORN = re.compile(r"[\w./@%\0-]*(<=|>=|<|>)|(<=|>=|<|>).*", re.DOTALL)
_PARAMETER = re.compile(r"-{0,2}([^\W\d][\w.-]*)=(.+)", re.DOTALL)
_TEXTS: Mapping[str, TermField] = {
    "name": TermField.NAME, "id": TermField.ID, "user": TermField.USER, "framework": TermField.FRAMEWORK,
    "search": TermField.SEARCH,
}


def parsed(text: str) -> tuple[Term, ...]:
    """Return the terms of a search. Raises Invalid (`query.find`)."""
    if len(text) > LONGEST:
        raise Invalid("query.find", f"The search has {len(text):,} characters; at most {LONGEST} are possible")
    if not all(letter.isprintable() or letter.isspace() for letter in text):
        raise Invalid("query.find", "The search contains a control character; remove it")
    terms = tuple(_term(minus == "-", word) for minus, word in _TOKEN.findall(text) if word.strip('"'))
    if len(terms) > MOST:
        raise Invalid("query.find", f"The search has {len(terms)} words; at most {MOST} are possible")
    return terms


def _term(negated: bool, word: str) -> Term:
    """Return the term of one word. A word whose begin is quoted is a text, or a name that is compared."""
    plain = word.replace('"', "")
    mask = _QUOTED.sub(lambda found: "\0" * len(found[0].replace('"', "")), word)
    if (field := _FIELD.match(mask)) and (term := _of_field(field[1], plain[field.start(2):], negated)):
        return term
    if compared := _AMOUNT.fullmatch(mask):
        return _amount(negated, *(plain[slice(*compared.span(group))] for group in (1, 2, 3)))
    if _TORN.fullmatch(mask):
        raise Invalid("query.find", f'{plain[:40]}: write a comparison without spaces, such as f1>0.9; to find the '
                      f'text, write "{plain[:40]}"')
    if parameter := _PARAMETER.match(mask):
        kind, name = named(plain[slice(*parameter.span(1))])
        return Term(TermField.VALUE, (plain[parameter.start(2):],), negated, name, kind=kind)
    return Term(TermField.WORD, (plain,), negated)


def _of_field(name: str, value: str, negated: bool) -> Term | None:
    """Return the term of NAME:VALUE, None for a name that is not a field."""
    if name in _TEXTS:
        return Term(_TEXTS[name], (value,), negated)
    if name == "state":
        return Term(TermField.STATE, _states(value), negated)
    if name == "tag":
        return Term(TermField.TAG, tuple(filter(None, value.split(","))) or (value,), negated)
    return _is(value, negated) if name == "is" else None


def _states(text: str) -> tuple[str, ...]:
    try:
        found = meant(states.selected(text))
    except ValueError as problem:
        raise Invalid("query.find", f"state: {problem}") from None
    if not found:
        raise Invalid("query.find", "state: no state is given; write state:running")
    return tuple(sorted(found))


def _is(text: str, negated: bool) -> Term:
    if text != run_lists.FAVORITE:
        raise Invalid("query.find", f"is:{text[:40]} is not known; write is:{run_lists.FAVORITE}")
    return Term(TermField.FAVORITE, (text,), negated)


def _amount(negated: bool, name: str, operator: str, text: str) -> Term:
    value = amount(text)
    if value is None:
        said = f"{name}{operator}{text}"[:40]
        raise Invalid("query.find", f'{said}: write a number, such as {name[:40]}{operator}0.1; to find the text, '
                      f'write "{said}"')
    kind, name = named(name)
    return Term(TermField.AMOUNT, (str(value),), negated, name, operator, kind)
