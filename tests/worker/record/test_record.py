"""Recorded resources: this machine's counters against known traffic and reads; counters it lacks in folders laid out as
the kernel documents (Documentation/ABI/testing/sysfs-class-net, stable/sysfs-class-infiniband,
admin-guide/pm/cpufreq.rst, driver-api/thermal/sysfs-api.rst)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.measuring import environment
from harness.worker.record import counters, energy, nccl, nvml

MIB = 2**20


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def interface(net: Path, name: str, kind: int, sent: int, received: int, physical: bool = False) -> None:
    write(net / name / "type", kind)
    write(net / name / "statistics" / "tx_bytes", sent)
    write(net / name / "statistics" / "rx_bytes", received)
    if physical:
        (net / name / "device").mkdir()


def test_bytes_over_the_loopback_interface_are_counted() -> None:
    network = counters.Network()
    if "lo sent" not in network.files:
        pytest.skip("this kernel shows no counters of its loopback interface")
    before = network.read()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: socket.create_connection(server.getsockname()).sendall(bytes(8 * MIB)))
        thread.start()
        taken, _ = server.accept()
        with taken:
            received = 0
            while received < 8 * MIB:
                received += len(taken.recv(MIB))
        thread.join()
    moved = counters.difference(before, network.read())
    # A lower bound only: other programs may use loopback too.
    assert moved["lo sent"] >= 8 * MIB
    assert moved["lo received"] >= 8 * MIB


def test_bytes_that_a_process_reads_are_counted(tmp_path: Path) -> None:
    if not counters.reads():
        pytest.skip("this kernel shows no /proc/self/io")
    (tmp_path / "file").write_bytes(bytes(3 * MIB))
    before = counters.reads()
    (tmp_path / "file").read_bytes()
    moved = counters.difference(before, counters.reads())
    # Besides the file, the counters themselves were read: seven lines.
    assert 3 * MIB <= moved["read_call_bytes"] < 3 * MIB + 500
    assert moved["read_storage_bytes"] >= 0


def test_of_interfaces_the_physical_ones_are_taken_and_each_byte_once(tmp_path: Path) -> None:
    net, infiniband = tmp_path / "net", tmp_path / "infiniband"
    interface(net, "lo", 772, 1, 1)
    interface(net, "eth0", 1, 100, 200, physical=True)
    interface(net, "bond0", 1, 100, 200)
    interface(net, "ib0", 32, 50, 60, physical=True)
    port = infiniband / "mlx5_0" / "ports" / "1" / "counters"
    write(port / "port_xmit_data", 1000)
    write(port / "port_rcv_data", 2000)
    found = counters.Network(net, infiniband).read()
    assert found == {
        "mlx5_0/1 sent": 4000,
        "mlx5_0/1 received": 8000,
        "eth0 sent": 100,
        "eth0 received": 200,
        "lo sent": 1,
        "lo received": 1,
    }
    # Without port counters, IP over InfiniBand is the only source.
    without = counters.Network(net, tmp_path / "none").read()
    assert without["ib0 sent"] == 50


def test_in_a_container_what_looks_like_a_wire_is_taken_for_one(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", 1, 7, 8)
    assert counters.Network(tmp_path, tmp_path / "none").read() == {"eth0 sent": 7, "eth0 received": 8}


def test_a_counter_that_began_again_or_is_gone_gives_nothing() -> None:
    assert counters.difference({"a": 5, "b": 5, "c": 5}, {"a": 8, "b": 4}) == {"a": 3}


def test_clocks_and_temperature_of_the_own_cores(tmp_path: Path) -> None:
    assert not counters.Processors(tmp_path).known
    for core in os.sched_getaffinity(0):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/cpufreq"
        write(folder / "scaling_cur_freq", 2_400_000)
        write(folder / "cpuinfo_max_freq", 3_600_000)
    for number, (kind, temperature) in enumerate((("acpitz", 90_000), ("x86_pkg_temp", 61_000))):
        write(tmp_path / f"class/thermal/thermal_zone{number}/type", kind)
        write(tmp_path / f"class/thermal/thermal_zone{number}/temp", temperature)
    processors = counters.Processors(tmp_path)
    assert processors.known
    state = {"clocks_core_mhz": 2400.0, "clocks_core_max_mhz": 3600.0, "temperature_c": 61.0}
    assert processors.state() == state


HOLD = "held = bytearray(b'x') * (64 << 20)\nprint('held', flush=True)\ninput()"


def test_memory_that_was_held_is_in_the_peak_and_that_of_children_that_run_too() -> None:
    held = bytearray(b"x") * (64 * MIB)
    assert counters.peak_bytes()["host_peak_bytes"] > len(held)
    before = counters.peak_bytes()["host_peak_children_bytes"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD], **pipes, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        during = counters.peak_bytes()["host_peak_children_bytes"]
        child.communicate("\n")
    if not any(Path("/proc/self/task").glob("*/children")):
        pytest.skip("this kernel lists no children of a process")
    assert during - before > 64 * MIB


@pytest.mark.parametrize("library", ["libnvidia-ml-that-is-not-there.so.1", "libc.so.6"])
def test_without_the_driver_there_is_no_gpu_and_no_error(library: str) -> None:
    assert nvml.find("GPU-00000000-0000-0000-0000-000000000000", library) is None
    assert nvml.find(None, library) is None


def test_power_is_added_up_over_time() -> None:
    begin = time.perf_counter()
    meter = energy.Meter("GPU-0", energy.AddedPower(lambda: 100.0).read, 1e3, [None], energy.POWER)
    before = meter.counters()
    time.sleep(2.5 * energy.POWER_SECONDS)
    joules = meter.joules_since(before)
    # Bounded by the clock inside and outside; counters are rounded to a millijoule.
    assert 100 * 2.5 * energy.POWER_SECONDS - 0.01 <= (joules or 0) <= 100 * (time.perf_counter() - begin) + 0.01
    assert meter.basis == "power"


def test_power_that_is_not_told_any_more_gives_nothing() -> None:
    told: list[float | None] = [100.0, 100.0, None]
    meter = energy.Meter("GPU-0", energy.AddedPower(lambda: told.pop(0) if told else None).read, 1e3, [None])
    before = meter.counters()
    time.sleep(3 * energy.POWER_SECONDS)
    assert meter.joules_since(before) is None
    with pytest.raises(OSError, match="does not report"):
        energy.AddedPower(lambda: None)


# Log lines of NCCL 2.7 to 2.21; host names and addresses are made up.
NCCL_LOG = """\
node1:5330:5330 [3] NCCL INFO NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_3:1/IB ; OOB eth0:10.0.0.1<0>
NCCL version 2.21.5+cuda12.4
node1:5330:5499 [3] NCCL INFO Using network IB
node1:5330:5499 [3] NCCL INFO NCCL_ALGO set by environment to Ring.
node1:5330:5499 [3] NCCL INFO Channel 00/04 :    0   1   2   3
node1:5330:5499 [3] NCCL INFO Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer/read
node1:5330:5499 [3] NCCL INFO Channel 01/0 : 7[7] -> 6[6] via P2P/direct pointer/read
node1:5330:5499 [3] NCCL INFO Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3
node1:5330:5499 [3] NCCL INFO Channel 00 : 3[4a000] -> 6[44000] [send] via NET/IB/0/GDRDMA
node1:5330:5499 [3] NCCL INFO Ring 00 : 155[3d000] -> 157[b2000] via P2P/IPC
node1:5330:5499 [3] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels
node1:5330:5499 [3] NCCL INFO AllReduce: 4096 Bytes -> Algo 1 proto 0 time 10.2
"""


def test_what_nccl_chose_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    assert nccl.read_log(log) is None
    log.write_text(NCCL_LOG)
    assert nccl.read_log(log) == {
        "version": "2.21.5+cuda12.4",
        "network": "IB",
        "channels": 16,
        "transports": {"P2P/direct pointer/read": 2, "NET/IB": 1, "NET/IB/GDRDMA": 1, "P2P/IPC": 1},
        "algorithms": {"AllReduce/1/0": 1},
    }


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(NCCL_LOG)))
def test_whatever_nccl_writes_is_passed_over(tmp_path_factory: pytest.TempPathFactory, junk: bytes, cut: int) -> None:
    log = tmp_path_factory.mktemp("nccl") / "log"
    log.write_bytes(NCCL_LOG.encode()[:cut] + junk)
    found = nccl.read_log(log)
    assert found is None or found["transports"] is not None


def test_nccl_is_asked_unless_the_user_has_said_what_it_writes(tmp_path: Path) -> None:
    variables: dict[str, str] = {"NCCL_DEBUG_SUBSYS": "TUNING"}
    assert nccl.enable_log(variables, tmp_path / "log") == tmp_path / "log"
    assert variables == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(tmp_path / "log"),
        "NCCL_DEBUG_SUBSYS": "TUNING",
    }
    for own in ({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "/tmp/mine"}):
        given_ = dict(own)
        assert nccl.enable_log(given_, tmp_path / "log") is None
        assert given_ == own


@pytest.mark.parametrize(
    "name",
    [
        *(
            "NCCL_SECRET",
            "NCCL_AUTH_TOKEN",
            "HOROVOD_SECRET_KEY",
            "_HOROVOD_SECRET_KEY",
            "HOROVOD_PASSWORD",
            "UCX_API_KEY",
        ),
        *("AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "MXNET_CREDENTIALS", "OMPI_MCA_private_thing", "HOME", "SSH_AUTH_SOCK"),
        *("nccl_algo", "XNCCL_ALGO", "SLURM_JOB_ACCOUNT"),
    ],
)
def test_no_secret_of_the_environment_is_written_down(name: str) -> None:
    asked = {"NCCL_ALGO": "Ring", "SLURM_JOB_NAME": "study", name: "hunter2"}
    assert environment.allowed_variables(asked) == {"NCCL_ALGO": "Ring", "SLURM_JOB_NAME": "study"}


def test_cores_of_each_numa_node(tmp_path: Path) -> None:
    for number, cores in ((0, "0-15,32-47"), (1, "16-31,48-63"), (10, "")):
        write(tmp_path / f"node{number}" / "cpulist", cores)
    assert environment.numa_nodes(tmp_path) == {"0": "0-15,32-47", "1": "16-31,48-63", "10": ""}
    assert environment.numa_nodes(tmp_path / "none") == {}
