"""Models and adapters that come and go: a request goes where its name lies ready, and elsewhere only for want of room."""

import asyncio
import json

from penstock.service.router.fleet import LOADED_LEAD
from tests.router.harness import ScriptedReplica, answer, routed
from tests.router.test_relay import run


async def patient(replica, headers, body, writer):
    """Answers when it is released."""
    await replica.released.wait()
    await answer(replica, headers, body, writer)


def pair(handler=answer) -> list[ScriptedReplica]:
    one = ScriptedReplica("one", handler, adapters={"law": True, "poems": False})
    other = ScriptedReplica("other", handler, adapters={"law": False, "poems": True})
    return [one, other]


def test_a_request_goes_where_its_adapter_is_loaded_and_follows_it() -> None:
    async def law() -> None:
        one, other = pair()
        async with routed(one, other) as router:
            fleet = router.app.fleet
            await router.until(lambda: {"law"} == fleet.get("one").loaded & {"law", "poems"})
            for _ in range(6):
                _, headers, body = await router.post({"model": "law"})
                assert json.loads(body)["by"] == "one"
                assert "loaded there" in headers["x-penstock-route"]
                assert json.loads((await router.post({"model": "poems"}))[2])["by"] == "other"
            by = [json.loads((await router.post({"model": "tiny"}))[2])["by"] for _ in range(6)]
            assert set(by) == {"one", "other"}, "both have the model itself"
            one.adapters["law"], other.adapters["law"] = False, True
            await router.until(lambda: "law" in fleet.get("other").loaded)
            assert json.loads((await router.post({"model": "law"}))[2])["by"] == "other"

    run(law)


def test_where_those_that_have_it_are_far_busier_another_loads_it() -> None:
    async def law() -> None:
        one, other = pair(patient)
        async with routed(one, other) as router:
            await router.until(lambda: "law" in router.app.fleet.get("one").loaded)
            asked = [asyncio.create_task(router.post({"model": "law"})) for _ in range(LOADED_LEAD + 8)]
            await router.until(lambda: len(one.asked) + len(other.asked) == len(asked))
            assert len(one.asked) > LOADED_LEAD
            assert other.asked
            one.released.set()
            other.released.set()
            assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}

    run(law)
