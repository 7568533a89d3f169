"""How many timers one firing takes: few after a pause, as many as it can alone, and short statements among tenants."""

from evertick.roles.scheduler.batch_size import (
    ALONE_SECONDS,
    BATCH,
    FIRST_BATCH,
    SHARED_BATCH,
    SHARED_SECONDS,
    SMALLEST_BATCH,
    BatchSize,
)


class Flood:
    """More is due than ever fires. A statement takes a fixed time, and so much for each timer."""

    def __init__(self, *, fixed: float = 0.004, each: float = 40e-6) -> None:
        self.size = BatchSize()
        self.now = 1000.0
        self._fixed = fixed
        self._each = each

    def fire(self, tenants: int) -> int:
        count = self.size.next(self.now)
        self.size.taken(count, is_more_due=True)
        began = self.now
        self.now += self._fixed + self._each * count
        self.size.fired(count, tenants, began, self.now)
        return count


def test_a_tenant_alone_gets_twice_as_much_each_time_up_to_a_whole_batch() -> None:
    flood = Flood()
    assert [flood.fire(1) for _ in range(6)] == [250, 500, 1000, 2000, 4000, 4000]


def test_among_tenants_a_statement_is_short() -> None:
    flood = Flood()
    sizes = [flood.fire(2) for _ in range(20)][1:]
    assert all(0.004 + 40e-6 * size <= 1.25 * SHARED_SECONDS for size in sizes)
    assert sizes[-1] >= SHARED_BATCH


def test_a_fast_server_gets_more_in_the_same_time() -> None:
    flood = Flood(fixed=0.001, each=5e-6)
    sizes = [flood.fire(2) for _ in range(20)]
    assert sizes[-1] > 1_500
    assert 0.001 + 5e-6 * sizes[-1] <= 1.25 * SHARED_SECONDS


def test_a_slow_server_gets_no_fewer_than_share_the_cost_of_a_statement() -> None:
    flood = Flood(fixed=0.5)
    assert [flood.fire(2) for _ in range(8)][2:] == [SHARED_BATCH] * 6


def test_a_tenant_counts_as_alone_some_time_after_the_others() -> None:
    flood = Flood()
    for _ in range(8):
        flood.fire(2)
    assert flood.fire(1) < 1_000
    flood.now += ALONE_SECONDS
    assert [flood.fire(1) for _ in range(5)][-1] == BATCH


def test_a_batch_that_was_too_much_is_halved_and_grows_again() -> None:
    flood = Flood()
    for _ in range(6):
        flood.fire(1)
    flood.size.halve(BATCH)
    assert flood.fire(1) == BATCH // 2
    flood.size.went_well()
    assert flood.fire(1) == BATCH
    flood.size.halve(2)
    assert flood.fire(1) == SMALLEST_BATCH


def test_after_a_pause_the_first_batch_is_small() -> None:
    flood = Flood()
    for _ in range(6):
        flood.fire(1)
    flood.size.taken(BATCH, is_more_due=False)
    assert flood.size.is_first
    assert flood.fire(1) == FIRST_BATCH
