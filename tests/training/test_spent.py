"""The record of a stage says how many operations its weights have cost, in this run and in those before it."""

import json
import shutil
from dataclasses import replace

import pytest

from crocodil.presets.runs import tiny
from crocodil.training.record import read_checksummed, write_checksummed
from crocodil.training.run import run_stage
from crocodil.training.run_config import Pretrained
from crocodil.training.spent import Shapes, StageWork, flops_of_run, flops_up_to, inherited_flops, read_record
from crocodil.training.workspace import Workspace


def test_stages_record_their_operations_and_those_of_the_stages_before(trained):
    base, guided, prior = (read_record(trained)["work"][stage] for stage in ("base", "guided", "prior"))
    assert base.inherited == {}
    assert guided.inherited == {"base": base.flops}
    assert prior.inherited == {"base": base.flops, "guided": guided.flops}


@pytest.mark.usefixtures("short_validation")
def test_a_base_that_goes_on_from_another_run_has_the_operations_of_both(trained, corpus, tmp_path):
    run, before = tiny(corpus), read_record(trained)["work"]["base"].flops
    more = replace(run, base_loop=replace(run.base_loop, num_steps=1))
    assert run_stage("base", more, Workspace(corpus, tmp_path, trained))
    own = before / run.base_loop.num_steps
    assert read_record(tmp_path)["work"]["base"] == StageWork(flops=own, inherited={"base": before})
    for stage in ("base", "guided"):  # of a third run
        assert inherited_flops(stage, run, Workspace(corpus, tmp_path / "next", tmp_path)) == {
            "base": before + own
        }
    begun_there = {**read_record(trained), "work": {"guided": StageWork(flops=1.0, inherited={"base": own})}}
    assert flops_of_run(begun_there, Shapes.of(run))["base"] == own


def test_operations_of_older_runs_follow_from_run_json_unless_their_base_went_on(trained, corpus, tmp_path):
    def recorded(**changes):
        """The operations of the base, in a run that an older version recorded."""
        values = {name: value for name, value in read_checksummed(file).items() if name != "work"}
        write_checksummed(tmp_path / "base" / "stage.json", {**values, **changes})
        return flops_up_to("base", read_record(tmp_path), Shapes.of(tiny(corpus)))

    file = trained / "base" / "stage.json"
    (tmp_path / "base").mkdir()
    shutil.copy(trained / "run.json", tmp_path)
    assert recorded() == {"base": pytest.approx(read_checksummed(file)["work"]["flops"])}
    assert recorded(sources={"base to go on from": "0"}) == {"base": None}
    with pytest.raises(ValueError, match=r"stage\.json: flops should be"):
        recorded(work={"flops": "many", "inherited": {}})
    (tmp_path / "base" / "stage.json").write_text(json.dumps({"settings": {}}))  # damaged
    assert flops_up_to("base", read_record(tmp_path), Shapes.of(tiny(corpus))) == {"base": None}


def test_operations_of_what_others_trained_are_unknown(corpus, tmp_path):
    adapted = replace(tiny(corpus), pretrained=Pretrained(llada=tmp_path))
    here = Workspace(corpus, tmp_path, tmp_path)
    assert inherited_flops("base", adapted, here) == inherited_flops("guided", adapted, here) == {"base": None}
    assert inherited_flops("base", tiny(corpus), here) == {}
