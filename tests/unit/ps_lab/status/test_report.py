"""Status as tables for people."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from ps_lab.cluster.display import make_console
from ps_lab.status.report import bytes_text, range_text, tables
from ps_lab.status.status import Job, RankConnections, Status
from ps_wire.spec.epoch_use import EpochUse
from tests.unit.ps_lab.made import made_job, made_status, made_table, made_table_worker, made_worker


def printed(status: Status, width: int = 300) -> str:
    console = Console(file=io.StringIO(), width=width)
    for table in tables(status):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (25 << 20, "25 MiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_a_range_of_one_is_a_number() -> None:
    assert (range_text(4, 4), range_text(4, 6)) == ("4", "4..6")


def test_a_running_job_shows_its_workers_and_tables() -> None:
    table = made_table(
        min_version=11,
        max_version=12,
        tau_counts={2: 23},
        workers=(
            made_table_worker(
                0, min_clock=6, max_clock=7, max_gap=3, applied=12, gate_wait_s=1.25, carriers=("uds",)
            ),
            made_table_worker(1, min_clock=5, max_clock=5, applied=11, dropped=1),
        ),
    )
    workers = (
        made_worker(0, step=6, metrics={"loss": 0.5}, passed_over="shm: no memory"),
        made_worker(1, state="left", host="there"),
    )
    text = printed(made_status(made_job(workers=workers, tables=(table,))))
    for expected in (
        "1 of 2",
        "there",
        "6..7",
        "loss=0.5",
        "11..12",
        "2.00",
        "23",
        "ssp:3",
        "127.0.0.1:1",
        "uds",
        "shm: no memory",
    ):
        assert expected in text


def test_what_is_waited_for_what_happened_and_what_became_of_samples_is_shown() -> None:
    waits = "waiting for worker 1, clock 41, lease 4.2 s left"
    epochs = [
        EpochUse(loader=0, epoch=number, samples=samples, used=90, handed_on=30, over=over)
        for number, samples, over in ((7, 100, True), (8, 100, False), (9, 0, True))
    ]
    job = made_job(
        workers=(made_worker(0, waits=waits),), happened=("12:00 event=evict worker=1",), epochs=tuple(epochs)
    )
    lines = [line.split() for line in printed(made_status(job)).splitlines()]
    text = " ".join(word for line in lines for word in line)
    assert waits in text
    assert "event=evict worker=1" in text
    assert [line for line in lines if line[1:2] == ["0"] and "90" in line] == [
        ["digits", "0", "7", "100", "90", "30", "10"],
        ["digits", "0", "8", "100", "90", "30"],
        ["digits", "0", "9", "?", "90", "30", "?"],
    ]


def test_what_a_peer_says_is_shown_as_it_is_and_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Else it could stop the table with a tag that nobody has opened, or hide behind a colour."""
    worker = made_worker(0, host="[/bold]", waits="[red]x :smile:", metrics={"[/]": 1.0})
    for table in tables(made_status(made_job(workers=(worker,)))):
        make_console().print(table)
    said = {word.rstrip(",;") for line in capsys.readouterr().out.splitlines() for word in line.split()}
    assert {"[/bold]", "[red]x", ":smile:", "[/]=1"} <= said


def test_servers_without_jobs_show_themselves() -> None:
    text = printed(made_status())
    assert "2 KiB" in text
    assert "none" in text


def test_of_a_job_that_sleeps_its_name_is_shown() -> None:
    job = made_job(state="asleep", num_workers=0, consistency="", workers=(), tables=())
    (line,) = [line for line in printed(made_status(job)).splitlines() if "asleep" in line]
    assert job.name in line
    assert " of " not in line


def test_what_peers_say_neither_breaks_lines_nor_talks_to_the_terminal() -> None:
    """Names of metrics, hosts, reasons and jobs are shown with their control characters escaped."""
    forged = "x\n\x1b[2Jforged"
    worker = made_worker(0, host=forged, waits=forged, passed_over=forged, metrics={forged: 1.0})
    shown = printed(made_status(made_job(name=forged, workers=(worker,), happened=(forged,))))
    assert "\x1b" not in shown
    assert "\nforged" not in shown
    assert shown.count(r"x\n\x1b[2Jforged") >= 5


def test_what_is_asked_of_one_job_shows_no_other_and_all_servers() -> None:
    status = made_status(made_job(name="mine"), made_job(name="theirs"))
    assert [job.name for job in status.only("mine").jobs] == ["mine"]
    assert status.only("none").jobs == ()
    assert status.only("mine").shards == status.shards


def wide_job() -> Job:
    """Long names and large numbers, as after days on a cluster."""
    host = "gpu-node-17.cluster.example.com"
    waits = f"waiting for worker 1 (host {host}, pid 1234567), clock 41, lease 4.2 s left"
    workers = tuple(
        made_worker(
            number,
            host=host,
            pid=1234567,
            state="finishing",
            step=123456 + number,
            samples=12345678,
            waited_s=12345.6,
            heartbeat_age_s=12.3,
            metrics={"loss": 0.1234, "accuracy": 0.9876},
            waits=waits,
            passed_over="shm: another host",
        )
        for number in range(2)
    )
    table = made_table(
        min_version=123456,
        max_version=123458,
        partitions=4096,
        weight_bytes=999 << 30,
        optimizer_bytes=999 << 30,
        bytes_in=999 << 40,
        bytes_out=999 << 40,
        tau_counts={2: 23, 17: 1},
        workers=tuple(
            made_table_worker(
                number,
                min_clock=123456,
                max_clock=123457,
                max_gap=12,
                applied=123456789,
                dropped=12345,
                abstained=1234,
                duplicates=123,
                gate_wait_s=12345.6,
                carriers=("tcp",),
            )
            for number in range(2)
        ),
    )
    return made_job(
        consistency="asp:max_delay=16",
        workers=workers,
        tables=(table,),
        happened=(f"2026-11-22T12:00:00Z event=evict worker=1 incarnation=4294967297 host={host}",),
        epochs=(EpochUse(loader=0, epoch=12, samples=1281167, used=1281000, handed_on=3000, over=True),),
    )


def test_status_is_readable_on_80_columns() -> None:
    """No line is longer, no figure is broken or cut short, and no word of a worker is lost."""
    status = made_status(wide_job())
    lines = [line.strip() for line in printed(status, width=80).splitlines()]
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "\u2026" in line]
    assert "0      finishing 123456 12345678 123456..123457   0  12  12346   12346  12.3" in lines
    assert "0 123456..123458       4096 999 GiB   999 GiB 999 TiB 999 TiB" in lines
    assert "0 246913578   24690      2468        246     2.62  17  17" in lines
    said = " ".join(line[49:].strip() for line in printed(status, width=80).splitlines())
    assert "lease 4.2 s left; no better carrier: shm: another host" in said
    whole = {word for line in printed(status).splitlines() for word in line.split()}
    figures = {word for word in whole if word.replace(".", "").isdigit()}
    assert figures <= {word for line in lines for word in line.split()}


def test_a_job_of_several_tables_is_readable_on_80_columns() -> None:
    """What is said of each table folds; what is said once is whole."""
    job = wide_job()
    status = made_status(replace(job, tables=tuple(replace(job.tables[0], table=it) for it in range(3))))
    words = {word for line in printed(status, width=80).splitlines() for word in line.split()}
    assert {"123456", "12345678", "12346", "12.3", "finishing", "123456..123458"} <= words


def test_ranks_of_a_group_are_shown_with_what_each_has_pushed_and_one_process_is_not() -> None:
    def shown(*ranks: int) -> str:
        of = tuple(RankConnections(rank=it, received_bytes=2 << 20, sent_bytes=0) for it in ranks)
        table = made_table(workers=(made_table_worker(0, ranks=of),))
        job = made_job(workers=(made_worker(0),), tables=(table,))
        return " ".join(printed(made_status(job)).split())

    assert f"pushed by rank 0: {bytes_text(2 << 20)}, rank 1: {bytes_text(2 << 20)}" in shown(0, 1)
    assert "pushed by" not in shown(0)
