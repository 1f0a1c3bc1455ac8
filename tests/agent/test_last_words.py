"""The agent sends its worker's last output: some time after it changed, and before it exits."""

import asyncio

from scripted_server import Place, Server

from holdfast.agent.http import HttpResponse
from virtual_time import on_virtual_time


def test_an_agent_sends_its_log_ten_seconds_after_it_changed_and_not_again(place: Place) -> None:
    async def story() -> None:
        server = Server()
        agent = place.agent(server)
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(9)
        assert server.sent("log") == []
        await asyncio.sleep(60)
        [report] = server.sent("log")
        assert "registered" in report["text"]
        agent.words.write(b"a new line\n")
        await asyncio.sleep(11)
        assert server.sent("log")[-1]["text"].endswith("a new line\n")
        agent.drain()
        assert await running == 0
        assert len(server.sent("log")) == 2, "a clean exit does not send the agent's own lines alone"

    on_virtual_time(story())


def test_a_log_that_could_not_be_stored_is_sent_again(place: Place) -> None:
    async def story() -> None:
        server = Server()
        server.answers["log"] = [HttpResponse(503, b"{}")]
        agent = place.agent(server)
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(60)
        assert server.times("log") == [10.0, 20.0]
        agent.drain()
        await running

    on_virtual_time(story())


async def test_an_agent_that_fails_sends_its_last_words_with_the_served_process_and_without_secrets(place: Place) -> None:
    server = Server(worker={"activate": ["sh", "-c", 'echo "with $KEY"; exit 3']})
    server.offer(secrets={"KEY": "a-long-secret"}, credential="its-credential")
    assert await asyncio.wait_for(place.agent(server).run(), 60) == 1
    [report] = server.sent("log")
    assert "with ***\n" in report["text"]
    assert "activate exited with 3" in report["text"].splitlines()[-1]
    assert not any(secret in str(server.calls) for secret in ("a-long-secret", "its-credential"))


def test_a_worker_that_exits_cleanly_sends_what_its_processes_wrote_last(place: Place) -> None:
    async def story() -> None:
        server = Server()
        agent = place.agent(server)
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(1)
        agent.words.write(b"the model is loaded\n")
        agent.drain()
        assert await running == 0
        [report] = server.sent("log")
        assert "the model is loaded\n" in report["text"]

    on_virtual_time(story())


def test_a_clean_exit_waits_half_a_second_at_most_for_its_last_output(place: Place) -> None:
    async def story() -> None:
        server = Server()
        server.slow["log"] = 600
        agent = place.agent(server)
        running = asyncio.create_task(agent.run())
        await asyncio.sleep(1)
        agent.words.write(b"the model is loaded\n")
        began = asyncio.get_running_loop().time()
        agent.drain()
        assert await running == 0
        assert 0.5 <= asyncio.get_running_loop().time() - began < 0.6

    on_virtual_time(story())


def test_a_worker_that_writes_all_the_time_sends_half_a_kilobyte_per_second_and_its_end(place: Place) -> None:
    async def story() -> None:
        server = Server()
        agent = place.agent(server)
        running = asyncio.create_task(agent.run())
        for number in range(1200):
            agent.words.write(f"{number} {'x' * 1000}\n".encode())
            await asyncio.sleep(1)
        sent = server.sent("log")
        assert sum(len(report["text"]) for report in sent) / 1200 < 600
        assert len(sent[-1]["text"]) > 64 * 1024 - 1100, "each report is the whole end"
        agent.words.write(b"the last line\n")
        agent.drain()
        assert await running == 0
        assert "the last line\n" in server.sent("log")[-1]["text"]

    on_virtual_time(story())


async def test_an_exit_does_not_wait_long_for_a_server_that_does_not_answer(place: Place) -> None:
    server = Server(worker={"activate": ["false"]})
    server.slow["log"] = 600
    server.offer()
    assert await asyncio.wait_for(place.agent(server).run(), 30) == 1
