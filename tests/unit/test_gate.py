"""Keys of gates: how they are written, rendered and hashed."""

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.gate import GateFields, gate_of, parse_key, render_key

NONE = GateFields(None, None, None)
SHARED_ID, ORDERED_ID, OWN_ID = 4159471747837595919, 609239747887863050, 1156647514288373323


def shared(key: str, limit: int | None = None) -> GateFields:
    return GateFields(limit, key, None)


def ordered(key: str) -> GateFields:
    return GateFields(None, None, key)


@pytest.mark.parametrize(
    ("text", "payload", "key"),
    [
        ("billing", None, "billing"),
        ("{{payload.account}}", {"account": "a-1"}, "a-1"),
        ("{{ payload.account }}", {"account": 7}, "7"),
        ("{{payload.eu}}/{{payload.share}}", {"eu": True, "share": 1.5}, "true/1.5"),
        ("{{payload.a.b}}", {"a.b": "one field"}, "one field"),
        ("x{{payload.empty}}", {"empty": ""}, "x"),
        ("{{payload.n}}", {"n": 1.0}, "1"),
        ("{{payload.n}}", {"n": -0.0}, "0"),
        ("{{payload.n}}", {"n": 2**70}, "1180591620717411303424"),
        ("{{payload.n}}", {"n": float(2**70)}, "1180591620717411303424"),
    ],
)
def test_a_key_is_rendered_from_the_payload(text: str, payload: object, key: str) -> None:
    assert render_key("concurrency_key", text, payload) == key


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (None, "has no field 'account', which ordering_key names"),
        ([], "has no field 'account', which ordering_key names"),
        ({"account": None}, "has no field 'account', which ordering_key names"),
        ({"account": {}}, "its field 'account', which ordering_key names, must be a string, a number or a boolean"),
        ({"account": []}, "its field 'account', which ordering_key names, must be a string, a number or a boolean"),
    ],
)
def test_a_payload_without_what_a_key_names_is_refused(payload: object, reason: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        render_key("ordering_key", "{{payload.account}}", payload)
    assert (refused.value.field, refused.value.reason) == ("payload", reason)


@pytest.mark.parametrize("text", ["", "x" * 256, "{{account}}", "{{payload.}}", "{{payload}}", "{x}", "x}}", "{{{{"])
def test_a_key_that_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_key("concurrency_key", text)


def test_the_ids_of_gates_are_stable() -> None:
    assert gate_of(shared("billing", 3), 1, 256, None) == SHARED_ID
    assert gate_of(ordered("billing"), 1, 256, None) == -ORDERED_ID
    assert gate_of(NONE._replace(max_running=2), 1, 256, None) == OWN_ID


def test_a_job_without_keys_and_limit_has_no_gate() -> None:
    assert gate_of(NONE, 1, 256, {"account": 1}) is None


@pytest.mark.parametrize(
    ("fields", "limit"),
    [(NONE, None), (NONE._replace(max_running=2), 2), (shared("k"), 1), (shared("k", 3), 3), (ordered("k"), 1)],
)
def test_one_run_at_a_time_has_a_key_unless_there_is_a_limit(fields: GateFields, limit: int | None) -> None:
    assert fields.limit == limit


def test_different_tenants_keys_and_kinds_have_different_gates() -> None:
    gates = [
        gate_of(shared("a"), 1, 256, None),
        gate_of(shared("a"), 2, 256, None),
        gate_of(shared("b"), 1, 256, None),
        gate_of(ordered("a"), 1, 256, None),
        gate_of(NONE._replace(max_running=1), 1, 256, None),
        gate_of(NONE._replace(max_running=1), 1, 512, None),
    ]
    assert len({abs(gate) for gate in gates if gate}) == len(gates)


def test_jobs_with_one_key_have_one_gate() -> None:
    assert gate_of(shared("{{payload.n}}"), 1, 256, {"n": 7}) == gate_of(shared("7"), 1, 512, {"other": 1})
