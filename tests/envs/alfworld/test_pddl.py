"""The PDDL reader: whatever is written is read back, and broken text is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsipo_jax.envs.alfworld.pddl import Expression, PddlError, literals, parse_expression, parse_problem

symbols = st.text("abcxyz0189_-?:=", min_size=1, max_size=8)
expressions: st.SearchStrategy[Expression] = st.lists(
    st.recursive(symbols, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12), max_size=4
).map(tuple)


def written(expression: Expression, gap: str = " ") -> str:
    if isinstance(expression, str):
        return expression
    return f"({gap.join(written(part, gap) for part in expression)})"


@given(expressions, st.sampled_from([" ", "\n", "\t  ", " ; a (comment\n"]))
def test_reads_back_what_was_written(expression: Expression, gap: str) -> None:
    assert parse_expression(written(expression, gap)) == expression


@given(expressions)
def test_case_does_not_matter(expression: Expression) -> None:
    assert parse_expression(written(expression).upper()) == expression


@given(expressions, st.data())
def test_a_lost_parenthesis_is_an_error(expression: Expression, data: st.DataObject) -> None:
    text = written(expression)
    lost = data.draw(st.sampled_from([at for at, character in enumerate(text) if character in "()"]))
    with pytest.raises(PddlError):
        parse_expression(text[:lost] + text[lost + 1 :])


@pytest.mark.parametrize("text", ["", "()()", "(a))", "((a)"])
def test_exactly_one_expression(text: str) -> None:
    with pytest.raises(PddlError):
        parse_expression(text)


def test_facts_and_goal_of_a_problem() -> None:
    problem = parse_problem(
        "(define (problem P) (:init (= (total-cost) 0) (On A b) (on c d) (hot a)) (:goal (and (hot c))))"
    )
    assert problem.facts == {"on": (("a", "b"), ("c", "d")), "hot": (("a",),)}
    assert literals(problem.goal) == [("hot", "c")]


def test_literals_leave_out_negations_and_quantifiers() -> None:
    goal = parse_expression("(exists (?r - room) (and (in ?o ?r) (not (= ?o ?p)) (exists (?p) (in ?p ?r))))")
    assert literals(goal) == [("in", "?o", "?r"), ("in", "?p", "?r")]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("(define (:goal (and)))", ":init"),
        ("(define (:init))", ":goal"),
        ("(define (:init x) (:goal (a)))", "'x'"),
        ("(define (:init (pickupable)) (:goal (a)))", "pickupable 0 arguments instead of 1"),
        ("(define (:init (canContain a b c)) (:goal (a)))", "cancontain 3 arguments instead of 2"),
        ("(define " + "(" * 300_000 + ")" * 300_000 + ")", "nests more than 100 lists"),
    ],
)
def test_a_problem_names_what_is_wrong_with_it(text: str, part: str) -> None:
    with pytest.raises(PddlError, match=part):
        parse_problem(text)


def test_goals_with_alternatives_are_refused() -> None:
    with pytest.raises(PddlError, match="holds 1 arguments instead of 2"):
        literals(parse_expression("(and (holds ?a))"))
    with pytest.raises(PddlError, match="only and, exists, not"):
        literals(parse_expression("(or (a) (b))"))
