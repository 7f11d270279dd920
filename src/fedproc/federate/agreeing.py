"""What server and sites agree upon before the rounds: who takes part, the classes, what images look like, epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedproc.data import FEDERATION, source_of
from fedproc.data.outline import batch_size_for, epochs_for
from fedproc.experiment import Experiment
from fedproc.federate.joining import Agreed, Invitation, Joined, Look, Ready, Said, Seen, heard, tell
from fedproc.federate.segment import Segment
from fedproc.federate.server_run import Agreement, agree_on_look, checked_seen, code_of, pooled_pixels
from fedproc.protocol.codec import Message
from fedproc.protocol.guard import Refused


class Agreeing:
    """The messages before the first round of a segment, for one run."""

    def __init__(self, segment: Segment, run: str, needed: int) -> None:
        self._segment, self._run, self._needed = segment, run, needed

    def invite(self, experiment: Experiment, agreement: Agreement | None) -> dict[str, Joined]:
        """Those who take part, with the classes they have."""
        known = list(agreement.class_names) if agreement is not None else self._segment.options.classes
        plugin, network = code_of(experiment)
        here = {"encoder_weights": None, "start_from": None}  # files of the server, which sends what is in them
        config = {**experiment.config(), **here}
        asked = Invitation(
            run=self._run, experiment=config, classes=known, plugin_sha256=plugin, network_sha256=network
        )
        joined: dict[str, Joined] = {}
        for site, answer in self._tell(dict.fromkeys(self._segment.there(), asked), Joined).items():
            strange = sorted(set(answer.classes) - set(known or answer.classes))
            if strange:
                self._segment.leave_out(site, f"it has images of {strange[0]}, which is none of the classes")
            else:
                joined[site] = answer
        return joined

    def agree(self, experiment: Experiment, joined: dict[str, Joined]) -> Agreement:
        """What all use from the first round on. Who tells nothing of its images is taken out of `joined`."""
        options = self._segment.options
        self._segment.expect(len(joined), "joined", self._needed)
        names, channels, side = agree_on_look(joined, options.classes, experiment.image_size)
        look = Look(run=self._run, classes=list(names), channels=channels, side=side)
        seen = self._look(dict.fromkeys(joined, look))
        for site in set(joined) - set(seen):
            del joined[site]
        self._segment.expect(len(joined), "told about their images", self._needed)
        normalisation = pooled_pixels(seen, channels)
        if experiment.normalize == "known":
            normalisation = source_of(FEDERATION).normalisation(channels)
        sizes = [max(1, sum(each.counts)) * (1 - experiment.val_fraction) for each in seen.values()]
        batch_size, epochs = experiment.batch_size, experiment.epochs
        following = options.following if experiment.privacy is None else frozenset()
        if "batch_size" in following:
            batch_size = batch_size_for(sizes)
        if "epochs" in following:
            epochs = epochs_for(sizes, batch_size, epochs)
        agreement = Agreement(names, channels, side, normalisation.mean, normalisation.std, batch_size, epochs)
        for site in (name for name in self._segment.sites if name in seen):
            agreement = agreement.with_site(site, seen[site].counts, 0)
        about = f"{len(names)} classes ({', '.join(names)}), {side} x {side} pixels, {len(joined)} sites"
        self._segment.say(f"{about}, {epochs} epochs of batches of {batch_size}")
        return agreement

    def begin(self, experiment: Experiment, agreement: Agreement, joined: dict[str, Joined]) -> Agreement:
        """Give each site its number; sites that join a run under way come after the others. Raises TooFew."""
        a, segment = agreement, self._segment
        new = [site for site in segment.sites if site in joined and site not in a.sites]
        if new:
            look = Look(run=self._run, classes=list(a.class_names), channels=a.channels, side=a.side)
            for site, seen in self._look(dict.fromkeys(new, look)).items():
                a = a.with_site(site, seen.counts, 0)
        messages = {
            site: Agreed(
                run=self._run, classes=list(a.class_names), channels=a.channels, side=a.side, mean=list(a.mean),
                std=list(a.std), client=a.sites.index(site), batch_size=experiment.batch_size, epochs=experiment.epochs,
            )
            for site in joined
            if site in a.sites
        }  # fmt: skip
        ready = self._tell(messages, Ready)
        for site, answer in list(ready.items()):
            had = a.samples.get(site, 0)
            if had and had != answer.samples:
                segment.leave_out(site, f"it has {answer.samples} training images, had {had} when the run began")
                del ready[site]
                continue
            a = a.with_site(site, a.counts[site], answer.samples)
            with segment.lock:
                segment.status.sites[site].samples = answer.samples
                segment.status.sites[site].state = "ready"
        segment.expect(len(ready), "are ready", self._needed)
        return a

    def _look(self, asked: Mapping[str, Look]) -> dict[str, Seen]:
        """What sites say of their images, as far as it can be true."""
        found = {}
        for site, answer in self._tell(asked, Seen).items():
            try:
                checked_seen(answer, asked[site].channels, len(asked[site].classes))
                found[site] = answer
            except Refused as reason:
                self._segment.leave_out(site, str(reason))
        return found

    def _tell(self, messages: Mapping[str, Said], wanted: type[Any]) -> dict[str, Any]:
        """Whoever answers anything but what is wanted is left out of the segment."""
        segment = self._segment
        found: dict[str, Any] = {}

        def take(site: str, answer: Message | str) -> None:
            try:
                if isinstance(answer, str):
                    raise Refused(answer)
                found[site] = heard(answer, wanted)
                with segment.lock:
                    segment.status.sites[site].state = "joining"
            except Refused as reason:
                if not isinstance(answer, str):
                    segment.status.declined.append(site)
                segment.leave_out(site, str(reason))

        if messages:
            told = {site: tell(said) for site, said in messages.items()}
            segment.wire.ask(told, segment.options.join_timeout, take)
            segment.check_ended()
        return {site: found[site] for site in messages if site in found}
