"""Spoken conversations of OpenAI's client while workers and the server are killed in mid-sentence.

    scripts/chaos realtime --seconds 300

A user asks one question after the other, aloud, until each has its answer. In each turn one process is killed, while
the user speaks or while the answer is spoken. The client connects again by itself, and resumes the conversation.

What is wrong afterwards: an item that the client has got and the server no longer has, or has twice, elsewhere, or in
other words; an answer that does not belong to its question; a question without an answer that no event has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import openai
import psutil
from tests.chaos.disasters import is_ready
from tests.chaos.outcome import tell
from tests.e2e.running_server import HANDLERS, ROOT, RunningServer, eventually
from tests.speech import VOICE, say
from websockets.exceptions import ConnectionClosed

from ts.handler_utils.audio import Resampler, encode_audio

RATE: Final = 24_000
#: Seconds of audio in one event.
PIECE: Final = 0.1
#: Seconds without any event, in which a turn neither goes on nor fails, and which counts as silence of the server.
PATIENCE: Final = 90.0
#: How often a question is asked until it has its answer.
ATTEMPTS: Final = 6
#: What is asked, and what the recogniser hears in it; to a story the answer is long.
QUESTIONS: Final = ("hello world", "tell me a story")
CLIENTS: Final = Path(__file__).parent / "realtime_clients"
#: What can be killed, and when.
SERVER: Final = "server"
TARGETS: Final = ("transcribe", "chat", "speak", "voice_activity", SERVER)
MOMENTS: Final = ("question", "answer")
CONFIG: Final = """
openai: true
batchSize: 4
responseTimeout: 60
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 100
maxSequenceJobQueueSize: 16
handler:
  cache: {{store: file, path: {path}, lease: 2}}
realtimePipeline:
  voiceActivity: voice_activity
  transcriber: transcribe
  synthesizer: speak
"""
_FAILED: Final = "conversation.item.input_audio_transcription.failed"
_COMPLETED: Final = "conversation.item.input_audio_transcription.completed"


@dataclass
class Report:
    """What was survived.

    Attributes:
        kills: By what was killed, and when.
        told: The events that have told of a loss.
        turns: Questions that have their answers.
        repeated: How often a question was asked once more.
        heard: Transcripts of questions in which nothing was killed; ``heard_right``: those that are as ever.
    """

    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    repeated: int = 0
    heard: int = 0
    heard_right: int = 0
    items: int = 0
    resumed: int = 0
    contradictions: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def shown(counts: Counter[str]) -> str:
            return ", ".join(f"{count} × {name}" for name, count in sorted(counts.items())) or "none"

        return (
            f"{self.seconds:.0f} s, {self.turns} questions answered, {self.repeated} asked again, {self.items} items, "
            f"resumed {self.resumed} times. Killed: {shown(self.kills)}.\n"
            f"  of {self.heard} undisturbed questions {self.heard_right} were heard right\n"
            f"  told: {shown(self.told)}\n  contradictions {len(self.contradictions)}"
        )


@dataclass
class Kept:
    """An item as the client has it; ``is_cut``: the user has not heard all of it."""

    item: Any
    is_done: bool = False
    is_cut: bool = False


def spoken(text: str) -> bytes:
    """Return a text as sound, as OpenAI's clients send it."""
    samples = np.frombuffer(say(text, *VOICE), "<i2").astype(np.float32) / 32768
    return encode_audio(Resampler(16_000, RATE).hear(samples), "pcm16")


def text_of(item: Any) -> str:
    """Return the words of an item."""
    texts = (getattr(part, "text", None) or getattr(part, "transcript", None) or "" for part in item.content)
    return " ".join(filter(None, texts)).strip()


def answer_to(heard: str) -> str:
    """Return what `scripted_chat` answers to a question, as the recogniser has heard it."""
    if "story" in heard:
        return " ".join(f"This is part {number} of the story." for number in range(1, 6))
    return f"You said {heard}."


class Killer:
    """Kills one process at a time."""

    def __init__(self, server: RunningServer, report: Report) -> None:
        self._server = server
        self._report = report

    async def kill(self, target: str, moment: str) -> None:
        """Kill the worker of a model, or the server, which is started again."""
        if target == SERVER:
            await asyncio.to_thread(self._kill_server)
        else:
            await asyncio.to_thread(self._kill_worker, target)
        self._report.kills[f"{target} in the {moment}"] += 1

    def _kill_worker(self, model: str) -> None:
        workers = self._server.describe(model)[0]["workers"]
        psutil.Process(workers[0]["pid"]).send_signal(signal.SIGKILL)

    def _kill_server(self) -> None:
        process = self._server.process
        assert process is not None
        self._server.server.kill()
        process.kill()
        process.wait()
        self._server.launch()

    async def recovered(self) -> None:
        """Wait until all models have their workers."""
        await asyncio.to_thread(eventually, lambda: is_ready(self._server), "the server is ready again")


class Microphone:
    """Sends what the user says, in real time, and silence in between."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sound = b""
        self._said = asyncio.Event()

    async def run(self) -> None:
        """Send, to the end of the conversation."""
        size = 2 * int(PIECE * RATE)
        next_at = time.monotonic()
        while True:
            piece, self._sound = self._sound[:size].ljust(size, b"\0"), self._sound[size:]
            if not self._sound:
                self._said.set()
            with contextlib.suppress(openai.OpenAIError, ConnectionClosed):  # while it connects again
                await self._connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
            next_at = max(next_at + PIECE, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def say(self, sound: bytes) -> None:
        """Say something; return once it is sent."""
        self._said.clear()
        self._sound += sound
        await self._said.wait()

    def stop(self) -> None:
        """Say nothing more."""
        self._sound = b""


class Client:
    """OpenAI's client, and what it has of the conversation: the items in their order."""

    def __init__(self, url: str, report: Report) -> None:
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        self._report = report
        self.conversation_id = ""
        self.kept: list[Kept] = []
        self.events = asyncio.Queue[Any]()
        #: What has begun and not ended, by its kind and id.
        self.open = set[tuple[str, str]]()
        self.happened_at = 0.0

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Microphone]:
        """Be connected, whatever happens to the server; yields the microphone."""
        async with self.openai.realtime.connect(
            model="chat", on_reconnecting=self._resume, max_retries=100, max_delay=1.0
        ) as connection:
            microphone = Microphone(connection)
            async with asyncio.TaskGroup() as group:  # a failure of either ends the talk
                tasks = [group.create_task(self._listen(connection, microphone)), group.create_task(microphone.run())]
                try:
                    yield microphone
                finally:
                    for task in tasks:
                        task.cancel()

    def _resume(self, event: Any) -> Any:
        """Tell the client where to go on: behind the items that it has."""
        query = {"conversation_id": self.conversation_id}
        whole = list(itertools.takewhile(lambda each: each.is_done, self.kept))
        return {"extra_query": query | ({"after": whole[-1].item.id} if whole else {})}

    async def _listen(self, connection: Any, microphone: Microphone) -> None:
        async for event in connection:
            self.happened_at = time.monotonic()
            if event.type == "session.created":
                if self.conversation_id:
                    self._report.told["connection lost"] += 1
                    self._report.resumed += 1
                    microphone.stop()
                    if event.session.conversation_id != self.conversation_id:
                        self._report.contradictions.append(f"another conversation: {event.session.conversation_id}")
                self.conversation_id = event.session.conversation_id
                self.kept = [each for each in self.kept if each.is_done]
                self.open.clear()
                heard: Any = {"transcription": {}}
                await connection.session.update(session={"type": "realtime", "audio": {"input": heard}})
            self._follow(event)
            self.events.put_nowait(event)

    def _follow(self, event: Any) -> None:
        """Keep the items, and what is under way."""
        match event.type:
            case "conversation.item.added" | "conversation.item.done":
                self._keep(event, is_done=event.type.endswith("done"))
                change = self.open.discard if event.type.endswith("done") else self.open.add
                change(("item", event.item.id))
            case "conversation.item.truncated":
                for each in self.kept:
                    each.is_cut |= each.item.id == event.item_id
            case "input_audio_buffer.speech_started":
                self.open.add(("speech", event.item_id))
            case "input_audio_buffer.speech_stopped":
                self.open.discard(("speech", event.item_id))
            case "response.created":
                self.open.add(("response", event.response.id))
            case "response.done":
                self.open.discard(("response", event.response.id))
                if event.response.status == "failed":
                    self._report.told[f"response failed: {event.response.status_details.error.code}"] += 1
            case "error":
                self._report.told[f"error: {event.error.code}"] += 1
            case _ if event.type == _FAILED:
                self._report.told[f"transcription failed: {event.error.code}"] += 1

    def _keep(self, event: Any, *, is_done: bool) -> None:
        known = next((each for each in self.kept if each.item.id == event.item.id), None)
        if known is not None:
            known.item, known.is_done = event.item, known.is_done or is_done
            return
        ids = [each.item.id for each in self.kept]
        previous = event.previous_item_id
        if previous is not None and previous not in ids:
            self._report.contradictions.append(f"{event.item.id} comes behind {previous}, which the client has not got")
        self.kept.insert(ids.index(previous) + 1 if previous in ids else 0, Kept(event.item, is_done))

    def heard(self) -> str:
        """Return the words of the last question."""
        questions = [each for each in self.kept if each.item.role == "user"]
        return text_of(questions[-1].item) if questions else ""

    async def settle(self) -> None:
        """Wait until nothing is under way. Raises TimeoutError: something does not end."""
        async with asyncio.timeout(PATIENCE):
            while self.open or time.monotonic() - self.happened_at < 2.0:
                await asyncio.sleep(0.1)
        while not self.events.empty():
            self.events.get_nowait()

    async def check(self) -> None:
        """Compare what the client has with what the server has."""
        page: Any = self.openai.conversations.items.list(self.conversation_id, order="asc", limit=100)
        stored = [item async for item in page]
        self._report.items = len(stored)
        mine = [each for each in self.kept if each.is_done]
        if [item.id for item in stored] != [each.item.id for each in mine]:
            has, had = (
                "\n  ".join(f"{item.id}: {text_of(item)}" for item in items)
                for items in (stored, [each.item for each in mine])
            )
            self._report.contradictions.append(f"the server has\n  {has}\nthe client\n  {had}")
            return
        for item, each in zip(stored, mine, strict=True):
            has, had = text_of(item), text_of(each.item)
            if not (had.startswith(has) if each.is_cut else had == has):
                self._report.contradictions.append(f"{item.id} is {has!r}, and was {had!r}")


class Talk:
    """One user who talks to one server."""

    def __init__(self, client: Client, microphone: Microphone, killer: Killer, report: Report, chance: random.Random):
        self._client = client
        self._microphone = microphone
        self._killer = killer
        self._report = report
        self._chance = chance

    async def turn(self, question: str, target: str, moment: str) -> None:
        """Ask a question until it has its answer; the first time something is killed."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._report.repeated += 1
                await self._killer.recovered()
            try:
                if await self._ask(question, *((target, moment) if not attempt else ("", ""))):
                    self._report.turns += 1
                    return
                await self._client.settle()
            except TimeoutError:
                kept = [text_of(each.item) for each in self._client.kept[-3:]]
                self._report.contradictions.append(
                    f"{question!r} with {target} killed in the {moment}, attempt {attempt + 1}: no event for"
                    f" {PATIENCE:g} s; open {self._client.open}, last items {kept}"
                )
                return
        self._report.contradictions.append(f"{question!r} has no answer after it was asked {ATTEMPTS} times")

    async def _ask(self, question: str, target: str, moment: str) -> bool:
        """Ask once; return whether there is an answer. Raises TimeoutError: nothing has happened."""
        sound, told = spoken(question), self._report.told.total()
        saying = asyncio.ensure_future(self._microphone.say(sound))
        if target and moment == MOMENTS[0]:
            await asyncio.sleep(len(sound) / 2 / RATE * self._chance.uniform(0.2, 0.9))
            await self._killer.kill(target, moment)
        await saying
        has_killed, played_until = moment != MOMENTS[1], 0.0
        while True:
            if told != self._report.told.total() and not self._client.open:
                return False
            async with asyncio.timeout(PATIENCE):
                event = await self._client.events.get()
            if event.type == "response.output_audio.delta":
                played_until = max(played_until, time.monotonic()) + len(event.delta) * 3 / 4 / 2 / RATE
                if not has_killed:
                    has_killed = True
                    await self._killer.kill(target, moment)
            elif event.type == _COMPLETED and told == self._report.told.total() and moment != MOMENTS[0]:
                self._report.heard += 1
                wanted = "story" if "story" in question else question
                self._report.heard_right += wanted in event.transcript
            elif event.type == "response.done" and event.response.status == "completed":
                said, heard = text_of(event.response.output[0]), self._client.heard()
                if said != answer_to(heard):
                    self._report.contradictions.append(f"{heard!r} is answered with {said!r}")
                await asyncio.sleep(max(0.0, played_until - time.monotonic()))  # it is played
                return True


async def _talk(server: RunningServer, report: Report, plan: Iterable[tuple[str, str]], seconds: float) -> None:
    chance, client, end = random.Random(0), Client(server.inference, report), time.monotonic() + seconds
    killer = Killer(server, report)
    async with client.connected() as microphone:
        talk = Talk(client, microphone, killer, report, chance)
        for number, (target, moment) in enumerate(plan):
            if time.monotonic() > end or len(report.contradictions) > 5:
                break
            print(f"{target} in the {moment}: {report}", flush=True)
            await talk.turn(QUESTIONS[1 if moment == MOMENTS[1] else number % 2], target, moment)
            await killer.recovered()
            await client.settle()
        await client.check()


@contextlib.contextmanager
def served() -> Iterator[RunningServer]:
    """Serve the four models."""
    with TemporaryDirectory() as directory:
        chat = Path(directory) / "chat"
        chat.mkdir()
        (chat / "handler.py").write_text((ROOT / "tests/apis/realtime/scripted_chat.py").read_text())
        (chat / "model-config.yaml").write_text(CONFIG.format(path=Path(directory) / "store.db"))
        models = {name: HANDLERS / name for name in ("voice_activity", "transcribe")}
        with RunningServer({**models, "chat": chat, "speak": HANDLERS / "gallery" / "speak.py"}) as server:
            server.wait_ready()
            yield server


def run(plan: Iterable[tuple[str, str]], seconds: float) -> Report:
    """Talk for so long, or to the end of the plan: what is killed in each turn, and in which moment."""
    report, began = Report(), time.monotonic()
    with served() as server:
        asyncio.run(_talk(server, report, plan, seconds))
    report.seconds = time.monotonic() - began
    return report


async def _disturb(server: RunningServer, report: Report, program: Sequence[str], seconds: float) -> None:
    """Kill what serves another program's conversation, to the end of the program, and check what it has printed."""
    killer, chance = Killer(server, report), random.Random(0)
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    reading = asyncio.ensure_future(_read(process, report))
    end = time.monotonic() + seconds - 20
    for target in itertools.cycle(TARGETS):
        await asyncio.wait((reading,), timeout=chance.uniform(4, 8))
        if reading.done() or time.monotonic() > end:
            break
        await killer.kill(target, "conversation")
        await killer.recovered()
    conversation_id, items = await reading
    process.kill()
    await process.wait()
    client = openai.AsyncOpenAI(base_url=f"{server.inference}/v1", api_key="none")
    stored = [item async for item in client.conversations.items.list(conversation_id, order="asc", limit=100)]
    report.items = len(stored)
    has = [[item.id, item.role, text_of(item)] for item in stored]
    if not items[0][0]:  # a client that takes what is said without an answer for one message, and cuts answers itself
        had, has = ([" ".join(text for _, role, text in each if role == "user")] for each in (items, has))
        had = has if had[0].endswith(has[0]) else had
    else:
        had = [[item_id, role, text.strip()] for item_id, role, text in items]
    for mine, theirs in itertools.zip_longest(had, has):
        if mine != theirs:
            report.contradictions.append(f"the client has {mine}, the server {theirs}")


async def _read(process: asyncio.subprocess.Process, report: Report) -> tuple[str, list[Any]]:
    assert process.stdout is not None
    async for line in process.stdout:
        print(line.decode(), end="", flush=True)
        event = json.loads(line)
        match event.pop("event"):
            case "answer" if event["answer"] == answer_to(event["heard"]):
                report.turns += 1
            case "answer":
                report.told["part of an answer"] += 1
            case "items":
                return event["conversation_id"], event["items"]
            case "told":
                report.told[event["what"][:80]] += 1
            case other:
                report.told[other] += 1
    raise AssertionError("the client ended early")


def run_client(python: str, script: Path, seconds: float) -> Report:
    """Let a program of `realtime_clients` talk for so long, while things are killed."""
    report, began = Report(), time.monotonic()
    with served() as server:
        question = server.directory / "question.pcm"
        question.write_bytes(spoken(QUESTIONS[0]))
        program = [python, str(script), server.inference, str(seconds), str(question)]
        asyncio.run(_disturb(server, report, program, seconds))
    report.seconds = time.monotonic() - began
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Talk for as long as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--client", nargs=2, metavar=("PYTHON", "NAME"), help="livekit or pipecat, and where it is")
    chosen = parser.parse_args(arguments)
    if chosen.client:
        python, name = chosen.client
        return tell([run_client(python, CLIENTS / f"{name}_client.py", chosen.seconds)])
    plan = itertools.cycle(itertools.product(MOMENTS, TARGETS))
    return tell([run(((target, moment) for moment, target in plan), chosen.seconds)])


if __name__ == "__main__":
    sys.exit(main())
