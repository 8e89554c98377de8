"""Guardrails: an operator's own service sees what is asked before a model does, and answers before their readers do."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec
import pytest

from penstock.errors import ConfigError
from penstock.service.gateway.keys import create_key
from penstock.service.gateway.settings import GuardrailSettings, settings_of
from tests.router.harness import SHOWN, ScriptedReplica, ask, telling
from tests.router.test_gateway_http import behind_gateway, foreign, said, saying
from tests.router.test_relay import run


class Judge:
    """The operator's service: allows what has no bad word in it, and says what it was asked. Random ids may end in "bad"."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.answer = lambda told: {"allow": "bad " not in json.dumps(told), "message": "no bad words"}
        self.status = 200
        self.writers: list[asyncio.StreamWriter] = []
        self.released = asyncio.Event()
        """Until it is set, nothing is judged."""
        self.released.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.split("content-length: ")[1].split("\r\n")[0])
                told = json.loads(await reader.readexactly(size))
                self.asked.append(told)
                await self.released.wait()
                body = json.dumps(self.answer(told)).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (self.status, len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def guarded(tmp_path, *replicas, stages=("before", "after"), **settings):
    judge = Judge()
    server = await asyncio.start_server(judge.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/judge"
    rules = {"guardrails": dict.fromkeys(stages, url) | settings}
    try:
        async with behind_gateway(tmp_path, rules, *replicas) as (router, asked):
            yield judge, server, router, asked
    finally:
        server.close()
        for writer in judge.writers:
            writer.close()


def code_of(answer) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["code"]


def test_what_is_refused_before_reaches_no_model_and_what_is_refused_after_no_client(tmp_path):
    async def law():
        nice, rude = foreign("nice", saying("good")), foreign("rude", saying("bad words"))
        async with guarded(tmp_path, nice, rude) as (judge, _, router, asked):
            assert said(await asked("nice")) == "good"
            assert [one["stage"] for one in judge.asked] == ["before", "after"]
            assert judge.asked[0]["tenant"] == "acme"
            assert judge.asked[0]["request"]["model"] == judge.asked[0]["model"] == "nice"
            assert judge.asked[1]["answer"]["choices"][0]["message"]["content"] == "good"
            refused = await asked("nice", messages=[{"role": "user", "content": "a bad thing"}])
            assert code_of(refused) == (400, "content_policy_violation")
            assert b"no bad words" in refused[2]
            assert len(nice.asked) == 1
            assert code_of(await asked("rude")) == (400, "content_policy_violation")
            assert len(rude.asked) == 1
            counted = router.app.meters.guardrails
            assert counted.value((("stage", "before"), ("outcome", "refused"))) == 1
            assert counted.value((("stage", "after"), ("outcome", "refused"))) == 1

    run(law)


def test_a_stream_is_held_until_it_is_judged_and_is_the_same_then(tmp_path):
    async def law():
        teller = ScriptedReplica("one", telling(), model="one")
        async with guarded(tmp_path, teller, stages=("after",)) as (judge, _, _router, asked):
            _, _, body = await asked("one", stream=True)
            assert body == SHOWN
            assert judge.asked[0]["answer"] == SHOWN.decode()
            judge.answer = lambda told: {"allow": False}
            assert code_of(await asked("one", stream=True)) == (400, "content_policy_violation")

    run(law)


def test_the_service_may_write_request_and_answer_anew(tmp_path):
    async def law():
        echo = foreign("one", saying("secret"))
        async with guarded(tmp_path, echo) as (judge, _, _router, asked):

            def anew(told: dict) -> dict:
                if told["stage"] == "before":
                    return {"allow": True, "body": told["request"] | {"seed": 7}}
                told["answer"]["choices"][0]["message"]["content"] = "***"
                return {"allow": True, "body": told["answer"]}

            judge.answer = anew
            assert said(await asked("one")) == "***"
            assert json.loads(echo.asked[0])["seed"] == 7

    run(law)


@pytest.mark.parametrize("fault", ["gone", "status", "rubbish"])
@pytest.mark.parametrize("stages", [("before",), ("after",)])
@pytest.mark.parametrize("on_failure", ["refuse", "pass"])
def test_where_it_does_not_answer_requests_are_refused_or_pass_as_told(tmp_path, fault, stages, on_failure):
    async def law():
        model = foreign("one", saying("good"))
        async with guarded(tmp_path, model, stages=stages, on_failure=on_failure, timeout_s=5.0) as made:
            judge, server, _, asked = made
            if fault == "gone":
                server.close()
            elif fault == "status":
                judge.status = 500
            else:
                judge.answer = lambda told: ["yes"]
            answer = await asked("one")
            if on_failure == "pass":
                assert said(answer) == "good"
            else:
                assert code_of(answer) == (503, "guardrail_unavailable")
                assert "retry-after" in answer[1]
                assert len(model.asked) == (stages == ("after",))

    run(law)


def test_what_it_cannot_see_is_refused(tmp_path):
    async def law():
        async with guarded(tmp_path, foreign("one", saying("good"))) as (judge, _, router, asked):
            gateway = router.app.gate.gateway
            key, _ = create_key(gateway.database, name="", tenant="acme", now=0.0)
            gateway.book.look(0.0)
            headers = {"authorization": f"Bearer {key}"}
            batch = b'{"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h"}'
            response = b'{"model": "one", "input": "x", "background": true}'
            for path, body in (("/v1/batches", batch), ("/v1/responses", response)):
                assert code_of(await ask(router.port, body, path, **headers)) == (403, "guardrail")
            assert not judge.asked
            assert (await asked("one", background=True))[0] == 200, "chat has no background"
            assert [one["stage"] for one in judge.asked] == ["before", "after"]

    run(law)


def test_settings_that_name_no_address_are_refused():
    for wrong in (GuardrailSettings(), GuardrailSettings(before="nowhere"), GuardrailSettings("http://x", timeout_s=0)):
        with pytest.raises(ConfigError, match="guardrails"):
            settings_of({"guardrails": msgspec.to_builtins(wrong)}, "rules")
