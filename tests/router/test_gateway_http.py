"""The gateway's rules, walked over HTTP: splits, fallbacks, cascades, outside APIs, answers given again."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec
import pytest

from penstock.service.gateway.accounts.usage import usage_sums
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.keys import create_key
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.store.database import SqliteDatabase
from tests.router.harness import Routed, ScriptedReplica, ask, chunk, head, routed, whole
from tests.router.test_relay import failing, run

QUESTION = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 10}


@asynccontextmanager
async def behind_gateway(tmp_path, rules: dict, *replicas: ScriptedReplica, **settings):
    """A router with a gateway; yields how a tenant asks."""
    database = SqliteDatabase(tmp_path / "gateway.db", [GATEWAY])
    keys = {name: create_key(database, name="", tenant=name, now=0.0)[0] for name in ("acme", "other")}
    gateway = Gateway(msgspec.convert(rules, GatewaySettings), database, 0.0)
    async with routed(*replicas, gateway=gateway, **settings) as router:

        async def asked(model: str, tenant: str = "acme", path: str = "/v1/chat/completions", **fields):
            body = json.dumps(QUESTION | {"model": model} | fields).encode()
            return await ask(router.port, body, path, authorization=f"Bearer {keys[tenant]}")

        await router.until(lambda: all(replica.models for replica in router.app.fleet))
        yield router, asked
        await router.until(lambda: not gateway.ledger.num_unwritten)
    database.close()


def saying(text: str, logprob: float | None = None):
    """Answers whole, as any OpenAI-compatible server does."""

    async def handler(replica, headers, body, writer):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "logprobs": None,
        }
        if json.loads(body).get("logprobs") and logprob is not None:
            choice["logprobs"] = {"content": [{"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        writer.write(whole(json.dumps({"choices": [choice], "usage": usage}).encode()))

    return handler


def foreign(model: str, handler) -> ScriptedReplica:
    return ScriptedReplica(model, handler, model=model, is_foreign=True)


def said(answer) -> str:
    status, _, body = answer
    assert status == 200, body
    return json.loads(body)["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("logprob", "by"), [(-0.1, "small"), (-2.0, "large")])
def test_a_cascade_asks_the_larger_model_where_the_small_one_is_unsure_and_both_are_paid(tmp_path, logprob, by):
    async def law():
        rules = {
            "models": {"chat": {"cascade": {"first": "small", "then": "large", "min_logprob": -0.7}}},
            "prices": {"small": {"output": 1.0}, "large": {"output": 10.0}},
        }
        small, large = foreign("small", saying("small", logprob)), foreign("large", saying("large"))
        async with behind_gateway(tmp_path, rules, small, large) as (router, asked):
            answer = await asked("chat")
            assert said(answer) == by
            assert json.loads(answer[2])["choices"][0]["logprobs"] is None, "nobody asked for them"
            assert "logprobs" not in json.loads(large.asked[0]) if by == "large" else not large.asked
            await router.until(lambda: not router.app.gate.gateway.ledger.num_unwritten)
            sums = {one.group[0]: one.cost for one in usage_sums(router.app.gate.gateway.database, ("model",))}
            assert sums == {"small": 2000} | ({"large": 20000} if by == "large" else {})

    run(law)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_chain_is_asked_in_its_order_until_somebody_answers(tmp_path, status):
    async def law():
        rules = {"models": {"chat": {"split": {"a": 1}, "fallback": ["b", "c"]}}}
        replicas = [foreign("a", failing(status)), foreign("b", failing(status)), foreign("c", saying("third"))]
        async with behind_gateway(tmp_path, rules, *replicas) as (_router, asked):
            assert said(await asked("chat")) == "third"
            assert [len(replica.asked) for replica in replicas] == [1, 1, 1]
            assert [json.loads(replica.asked[0])["model"] for replica in replicas] == ["a", "b", "c"]
            assert (await asked("a"))[0] == status, "a model asked for by name falls back on nothing"

    run(law)


def test_a_model_without_a_replica_falls_back_too(tmp_path):
    async def law():
        rules = {"models": {"chat": {"split": {"a": 1}, "fallback": ["b"]}}}
        gone, there = foreign("a", saying("a")), foreign("b", saying("b"))
        async with behind_gateway(tmp_path, rules, gone, there, wait_s=0.2) as (_router, asked):
            await gone.kill()
            assert said(await asked("chat")) == "b"

    run(law)


def test_what_overflows_leaves_by_the_rules_alone_with_the_operators_key_and_no_client_header(tmp_path):
    async def law():
        rules = {
            "models": {"chat": {"split": {"a": 1}, "fallback": ["outside:big"]}},
            "outside": {"big": {"url": "http://ignored", "model": "big-1"}},
            "tenants": {"acme": {"overflows": True}},
        }
        outside = foreign("big-1", saying("from outside"))
        await outside.open()
        async with behind_gateway(tmp_path, rules, foreign("a", failing(503))) as (router, asked):
            router.app.members.add_outside("big", f"http://127.0.0.1:{outside.port}/v1", "big-1", "operators-key")
            assert said(await asked("chat")) == "from outside"
            assert json.loads(outside.asked[0])["model"] == "big-1"
            assert outside.heads[0]["authorization"] == "bearer operators-key"
            assert not [name for name in outside.heads[0] if name.startswith("x-")]
            assert (await asked("chat", "other"))[0] == 503, "this tenant may not leave"
            for tenant in ("acme", "other"):
                status, _, body = await asked("outside:big", tenant)
                assert (status, json.loads(body)["error"]["code"]) == (403, "model_not_allowed")
            assert len(outside.asked) == 1
        await outside.kill()

    run(law)


def test_an_equal_question_gets_its_answer_again_in_its_own_tenant_alone(tmp_path):
    async def law():
        rules = {"tenants": {"acme": {"caches_answers": True}, "other": {"caches_answers": True}}}
        engine = foreign("m", saying("once"))
        async with behind_gateway(tmp_path, rules, engine) as (_router, asked):
            first, second = await asked("m"), await asked("m")
            assert said(first) == said(second) == "once"
            assert (second[1].get("x-penstock-cache"), len(engine.asked)) == ("hit", 1)
            await asked("m", "other")
            assert len(engine.asked) == 2
            for fields in (
                {"temperature": 1.0},
                {"messages": [{"role": "user", "content": "hello?"}]},
                {"stream": True},
            ):
                before = len(engine.asked)
                await asked("m", **fields)
                await asked("m", **(fields if "messages" not in fields else fields | {"temperature": 1.0}))
                assert len(engine.asked) == before + 2, fields

    run(law)


def test_a_canary_gets_its_share_and_whoever_asks_again_stays_on_its_side(tmp_path):
    async def law():
        rules = {"models": {"chat": {"split": {"old": 9, "new": 1}}}}
        old, new = foreign("old", saying("old")), foreign("new", saying("new"))
        async with behind_gateway(tmp_path, rules, old, new) as (_router, asked):
            sides = {f"s{number}": said(await asked("chat", user=f"s{number}")) for number in range(200)}
            assert 8 <= list(sides.values()).count("new") <= 35
            for session in list(sides)[:20]:
                assert said(await asked("chat", user=session)) == sides[session]

    run(law)


async def counted(replica, headers, body, writer):
    """A stream as vLLM's: counts only if they are asked for."""
    writer.write(head(content_type="text/event-stream", transfer_encoding="chunked") + b"\r\n")
    writer.write(chunk(b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'))
    if json.loads(body).get("stream_options", {}).get("include_usage"):
        writer.write(chunk(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'))
    writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def test_streams_of_other_engines_are_counted_and_the_counts_kept_from_who_did_not_ask(tmp_path):
    async def law():
        async with behind_gateway(tmp_path, {}, foreign("m", counted)) as (router, asked):
            _, _, plain = await asked("m", stream=True)
            assert plain == b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'
            _, _, told = await asked("m", stream=True, stream_options={"include_usage": True})
            assert b'"prompt_tokens":7' in told
            await router.until(lambda: not router.app.gate.gateway.ledger.num_unwritten)
            (total,) = usage_sums(router.app.gate.gateway.database, ("model",))
            assert (total.num_prompt, total.num_output) == (14, 2)

    run(law)


def test_prompts_that_begin_alike_go_to_one_engine_of_another_make():
    async def law():
        replicas = [ScriptedReplica(name, saying(name), is_foreign=True) for name in "ab"]
        async with routed(*replicas, policy="prefix-predicted") as router:
            assert not any(pool.is_ours for _, pool in router.app.members)
            for stem in ("one " * 300, "two " * 300, "three " * 200):
                found = set()
                for number in range(6):
                    body = {"model": "tiny", "messages": [{"role": "user", "content": stem + str(number)}]}
                    found.add(said(await router.post(body)))
                assert len(found) == 1, stem[:5]

    run(law)


def test_a_foreign_stream_is_sent_again_before_its_first_byte_only():
    async def law():
        async def dropping(replica, headers, body, writer):
            writer.transport.abort()

        bad, good = ScriptedReplica("bad", dropping, is_foreign=True), ScriptedReplica("good", counted, is_foreign=True)
        async with routed(bad, good) as router:
            await asyncio.gather(*(stream(router) for _ in range(4)))
            assert router.app.meters.failovers.value() == 0

    async def stream(router: Routed) -> None:
        status, _, body = await router.post(QUESTION | {"model": "tiny", "stream": True})
        assert (status, body.count(b"hi")) == (200, 1)

    run(law)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_request_that_is_refused_after_it_was_admitted_gives_its_turn_back(tmp_path, path):
    """A model that is not served, and replicas that do not keep tenants apart."""

    async def law():
        rules = {"tiers": {"one": {"concurrency": 1}}, "tenants": {"acme": {"tier": "one"}}}
        async with behind_gateway(tmp_path, rules, ScriptedReplica("a")) as (_, asked):
            for _ in range(3):
                status, _, body = await asked("unheard-of", path=path, input="hello")
                assert status in (404, 501), body

    run(law)
