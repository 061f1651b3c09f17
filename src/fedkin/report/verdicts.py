"""Whether it was worth joining, in words: what silos are told and come to, and what stands in the way of a yes."""

from __future__ import annotations

import numpy as np

from ..evidence import comparison
from ..evidence.findings import Findings
from ..evidence.verdicts import Joining, Silo
from .words import contenders, gain_text, is_share, listed, metric_name, score_text

MODEL = "logistic"
"""The linear model among those that are trained."""


def joining_told(findings: Findings) -> list[str]:
    """Whether it was worth joining, in sentences: of a page's and of the terminal's first ones.

    The comparison is of headline models in chosen rounds, the answer to silos of what they are handed at the end. Where
    these point in different directions, that is said."""
    found = findings.joined
    if found is None:
        return [findings.untold] if findings.untold else []
    told, gain = [joining_sentence(found), *with_nothing(found, findings)], found.together.value
    alone = contenders(findings)[0].method == comparison.ALONE
    if (alone and (gain > 0 or any(silo.answer == "yes" for silo in found.silos))) or (not alone and gain < 0):
        told.append(
            f"That is of the models handed out at the end, silos counted by their {found.counted_by.many}; which "
            "method does best is of the headline models, every silo counted alike."
        )
    return told


def joining_sentence(found: Joining) -> str:
    """The silos' answers counted, and what they gain on average, which may be sure where no single answer is."""
    if len(found.silos) == 1 or np.isnan(found.together.value):
        return found.sentence
    if not any(found.together):
        return f"{found.sentence} On no silo’s test samples is there any difference."
    unit, by = " points" if is_share(found.metric) else "", found.counted_by.many
    value, _, interval = gain_text(found.together, found.metric).partition(" ")
    if all(silo.answer == "cannot tell" for silo in found.silos) and found.together.low * found.together.high > 0:
        verb = "gains" if found.together.low > 0 else "costs"
        least = "are the test data enough to tell" if not found.held_back else "can a yes or no be told"
        return (
            f"On average joining with {found.method} {verb} a silo {value[1:]}{unit} of {metric_name(found.metric)} "
            f"{interval}, each counted by its {by}; for no single one of the {len(found.silos)} {least}."
        )
    return f"{found.sentence} The mean gain, each silo counted by its {by}, is {value}{unit} {interval}."


def with_nothing(found: Joining, findings: Findings) -> list[str]:
    """What stands in the way of a yes, in sentences: what silos have without joining, and without a network."""
    told = []
    held = found.held_back
    if held:
        one = len(held) == 1
        names = dict.fromkeys(PLURAL[silo.held_back][0 if one else 1] for silo in held if silo.held_back)
        told.append(
            f"At {listed([silo.client for silo in held], 4)} joining is better for sure than the network alone, but "
            f"{' or '.join(names)} is no worse, so that is no yes."
        )
    means = found.mean_beside("linear")
    if means is not None and found.no_yardstick:
        linear, alone, joined = (score_text(mean, found.metric) for mean in means)
        text = (
            f"A linear model of each silo’s own has a mean {metric_name(found.metric)} of {linear}, the network alone "
            f"{alone}, joining {joined}, each silo counted by its {found.counted_by.many}: the network alone is no "
            "good yardstick here. "
        )
        kinds = {str(run.config.get("model", {}).get("name", "")) for run in findings.runs}
        told.append(
            f"{text}Try --model {MODEL}, alone and joined."
            if kinds != {MODEL}
            else f"{text}It is linear as well: try another local.lr, more local.weight_decay, or other rounds."
        )
    return told


PLURAL = {
    "linear": ("a linear model of its own", "a linear model of their own"),
    "majority": ("the most frequent of its own labels", "the most frequent of their own labels"),
    "mean": ("the mean of its own targets", "the mean of their own targets"),
}


def verdict_text(silo: Silo, metric: str) -> str:
    return silo.verdict_with(lambda score: score_text(score, metric))


def joining_words(found: Joining) -> str:
    """What the table of silos shows, in sentences."""
    seeds = ""
    if found.by_patient:
        tested = sum(silo.samples for silo in found.silos)
        seeds = f" Values are means over {len(found.seeds)} seeds, " + (
            f"all of which test the same {tested:,} of the silos’ samples: what is said over seeds says nothing of "
            "other test samples."
            if found.same_samples
            else f"which together test {tested:,} of the silos’ samples; one tested in several seeds counts once."
        )
    elif len(found.seeds) > 1:
        seeds = (
            f" Values and intervals are means over {len(found.seeds)} seeds; these share the silo’s data, so the "
            "intervals are not narrowed."
        )
    if any(silo.subjects for silo in found.silos):
        seeds += " Intervals are by subject: what several samples of one say alike they say once."
    turned = "" if found.higher_is_better else " A lower value is better; a gain is told as a positive number."
    unit, fewest = ", in points," if is_share(found.metric) else "", found.counted_by
    yes = " What silos have with nothing is not known of these runs in this metric, so a yes is beyond training alone."
    if found.baselines:
        names = " and ".join(f"“{name}”" for name in found.baselines)
        yes = f" A yes needs a joined model that also beats what the silo has with nothing: {names}."
    return (
        f"Test {metric_name(found.metric)} with 95 % intervals, of the models that silos are handed at the end, not of "
        f"a best test round. Method: {found.method}, {found.chosen_by}. The gain over training alone{unit} is on the "
        "same test samples. A verdict holds after Holm’s correction over the silos; intervals are each silo’s own. "
        f"Fewer than {fewest.fewest} {fewest.many} get no verdict.{yes}{turned}{seeds}"
    )
