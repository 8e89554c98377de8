"""What a replica keeps is asked of that replica: responses, conversations, files and batches through one address."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from contextlib import ExitStack

import openai
import pytest

from tests.machine import PATIENCE_S
from tests.router.harness import ScriptedReplica, ask, routed, whole
from tests.router.service import Service, routing
from tests.router.test_relay import run
from tests.server.serving import Server, serving


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(serving("--data-dir", str(tmp_path_factory.mktemp(name)))) for name in ("one", "two")
        ]


@contextlib.contextmanager
def router(servers: list[Server]) -> Iterator[Service]:
    replicas = [word for server in servers for word in ("--replica", server.url)]
    with routing(*replicas, "--policy", "round-robin", servers=servers) as made:
        yield made


@contextlib.contextmanager
def sdk(servers: list[Server]) -> Iterator[openai.OpenAI]:
    with router(servers) as service:
        url = service.url + "/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client


def test_a_chain_of_responses_and_a_conversation_stay_where_they_began(servers):
    with sdk(servers) as client:
        firsts = [client.responses.create(model="default", input=f"first {n}", max_output_tokens=8) for n in range(4)]
        streamed = list(client.responses.create(model="default", input="x", max_output_tokens=8, stream=True))
        firsts.append(streamed[-1].response)
        for first in firsts:
            again = client.responses.retrieve(first.id)
            assert again.output_text == first.output_text
            follow = client.responses.create(
                model="default", input="and then?", previous_response_id=first.id, max_output_tokens=8
            )
            assert follow.previous_response_id == first.id
        talk = client.conversations.create()
        for _ in range(3):
            client.responses.create(model="default", input="hello", conversation=talk.id, max_output_tokens=8)
        assert len(client.conversations.items.list(talk.id).data) == 6
    with sdk(servers) as client:  # another router, which knows nothing: it finds what is kept by asking
        for first in firsts:
            assert client.responses.retrieve(first.id).id == first.id
        client.responses.delete(firsts[0].id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(firsts[0].id)


@contextlib.asynccontextmanager
async def kept_by_one_of_two(wait_s: float):
    """A router, the replica that keeps a response, and who answers for it."""

    def keeping(kept: set[str]):
        async def handler(replica, headers, body, writer):
            if body:
                kept.add("resp_1")
            status = 200 if kept else 404
            writer.write(whole(json.dumps({"id": "resp_1", "by": replica.name}).encode(), status))

        return handler

    first, second = ScriptedReplica("a", keeping(set())), ScriptedReplica("b", keeping(set()))
    async with routed(first, second, wait_s=wait_s) as router:

        async def got() -> str:
            return json.loads((await ask(router.port, b"", "/v1/responses/resp_1", "GET"))[2])["by"]

        router.app.fleet.drain(router.app.fleet.get("b"))
        assert (await router.post({"model": "tiny"}, "/v1/responses"))[0] == 200
        router.app.fleet.undrain(router.app.fleet.get("b"))
        assert {await got() for _ in range(4)} == {"a"}
        yield router, first, got


def test_what_a_replica_keeps_waits_for_it():
    async def law():
        async with kept_by_one_of_two(wait_s=PATIENCE_S) as (router, first, got):
            await first.kill()
            await router.until(lambda: router.app.fleet.get("a").state.value == "gone")
            asking = asyncio.create_task(got())
            await router.until(lambda: router.app.num_parked == 1)
            await first.open()
            assert await asking == "a"

    run(law)


def test_what_a_replica_kept_is_searched_when_it_left_for_good():
    async def law():
        async with kept_by_one_of_two(wait_s=0.2) as (router, first, got):
            router.app.remove_replica("a")
            router.app.add_replica("c", f"http://127.0.0.1:{first.port}")
            await router.until(lambda: router.app.fleet.get("c").state.value == "ready")
            assert await got() == "a", "the same server under another name"

    run(law)


def test_files_and_batches_of_all_replicas_are_one_list(servers):
    with sdk(servers) as client:
        body = {"model": "default", "prompt": "x", "max_tokens": 4}
        line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}).encode()
        made = [client.files.create(file=(f"{n}.jsonl", line), purpose="batch") for n in range(5)]
        assert {file.id for file in client.files.list(limit=2)} == {file.id for file in made}, "page by page"
        for file in made:
            assert client.files.content(file.id).read() == line
        batches = [
            client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
            for file in made[:3]
        ]
        assert {batch.id for batch in client.batches.list()} == {batch.id for batch in batches}
        for batch in batches:
            while (found := client.batches.retrieve(batch.id)).status not in ("completed", "failed"):
                pass
            assert found.status == "completed"
            assert b'"custom_id":"a"' in client.files.content(found.output_file_id).read()
        for file in made:
            client.files.delete(file.id)
