"""Measuring this machine; how good the figures are, benchmarks/simulate.py tells."""

import pytest

import replicax as rx
from replicax.costs.machines import Curve, Machine


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["wall", "cpu"])
def test_a_measured_machine_has_possible_figures(clock, tmp_path):
    machine = rx.calibrate(clock=clock, seconds=0.002)
    assert machine.shared_compute and machine.devices_per_host == 8
    peak = machine.peak_flops["float32"]
    assert isinstance(peak, Curve) and peak.rates[-1] > peak.rates[0]  # large products are faster
    assert 1e8 < peak.rates[-1] < 1e14
    assert 1e8 < machine.within.bandwidth < 1e13 and 1e-8 < machine.within.latency < 1
    assert machine.launch_seconds_per_device > 0
    assert machine.fresh_bandwidth < machine.memory_bandwidth.at(2**22)
    assert {"wall": "time on the clock", "cpu": "time of its cores"}[clock] in machine.source
    machine.save(tmp_path / "here.json")
    assert Machine.load(tmp_path / "here.json") == machine


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clock": "gpu"}, "clock is 'gpu'; expected 'wall' or 'cpu'"),
        ({"seconds": 0}, "seconds is 0; expected a positive number"),
    ],
)
def test_wrong_options_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        rx.calibrate(**options)
