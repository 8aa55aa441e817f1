"""Random histories of both cores together: nothing is lost, nobody waits for ever, each stream is exact,
each token is computed from the KV of just the tokens before it, and every timeline adds up.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.policy import POLICIES
from shared.ids import JobId
from shared.messages import FinishReason
from tests.cores import Cores, create_config, create_submit
from tests.scheduler.timelines import check_iterations, check_timeline

ACTIONS = st.sampled_from(["submit", "submit", "plan", "plan", "step", "step", "transfer", "abort", "fail"])


def draw_prompt(data: st.DataObject, cores: Cores) -> list[int]:
    """1 to 20 tokens; often the next turn of a conversation, or another one that begins alike."""
    turns = [cores.prompts[job_id] + tokens for job_id, tokens in cores.received.items()]
    begun = data.draw(st.sampled_from([list(range(20)), *turns]))
    prompt = begun[: data.draw(st.sampled_from([1, 2, 5, 8, 9, 12, 13, 19, 20]))]
    if len(prompt) < 20 and data.draw(st.booleans()):
        prompt.append(data.draw(st.integers(100, 102)))
    return prompt


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    policy=st.sampled_from(sorted(POLICIES)),
    mode=st.sampled_from(["proactive", "reactive", "recompute", "defer"]),
    host=st.sampled_from([0, 3, 10, 100]),
    reserve=st.sampled_from([0, 2]),
    stages=st.integers(1, 3),
    batch=st.integers(1, 6),
)
def test_random_histories(
    data: st.DataObject, policy: str, mode: str, host: int, reserve: int, stages: int, batch: int
) -> None:
    config = create_config(
        scheduler={
            "policy": policy,
            "max_batch_size": batch,
            "max_batch_tokens": data.draw(st.sampled_from([8, 64])),
            "chunked_prefill": data.draw(st.booleans()),
            "starvation_s": 20.0,
        },
        kv={
            "block_size": 4,
            "device_blocks": 8,
            "host_blocks": host,
            "swap_mode": mode,
            "reserve_blocks": reserve,
            "reuse": data.draw(st.booleans()),
            "prefix_blocks": data.draw(st.sampled_from([100, None, 2])),
        },
        parallel={"pipeline_stages": stages},
    )
    cores = Cores(config, copies=stages, watched=True)
    submitted: dict[JobId, tuple[int, int]] = {}
    disturbed: set[JobId] = set()
    for action in data.draw(st.lists(ACTIONS, min_size=40, max_size=120)):
        match action:
            case "submit":
                prompt, output = draw_prompt(data, cores), data.draw(st.integers(1, 12))
                submit = create_submit(
                    len(submitted),
                    prompt=prompt,
                    max_tokens=output,
                    priority=data.draw(st.integers(0, 1)),
                    tenant=data.draw(st.sampled_from("ab")),
                    predicted_output=output,
                    cache_salt=data.draw(st.sampled_from(["", "", "", "salt", None])),
                    request_id=f"r{len(submitted)}",
                )
                submitted[submit.job_id] = (len(prompt), output)
                cores.submit(submit)
            case "plan":
                cores.plan()
            case "step" | "fail" if cores.in_flight:
                index = data.draw(st.integers(0, len(cores.in_flight) - 1))
                failed = action == "fail"
                if failed:
                    disturbed |= {job.job_id for job in cores.in_flight[index].jobs}
                cores.finish_step(index, error="boom" if failed else None)
            case "transfer" if cores.moving:
                moving = data.draw(st.sampled_from(cores.moving))
                cores.clock.advance(0.25)
                cores.finish_transfer(moving.transfer_id)
            case "abort" if submitted:
                job_id = data.draw(st.sampled_from(sorted(submitted)))
                if job_id not in cores.recorder.ends:
                    disturbed.add(job_id)
                cores.scheduler.abort([job_id], cores.clock.now())
            case _:
                pass
        assert all(len(step.jobs) <= batch for step in cores.in_flight)
    cores.run()
    assert set(cores.recorder.ends) == set(submitted)
    for job_id, timeline in cores.recorder.timelines.items():
        check_timeline(timeline)
        check_iterations(timeline, cores.recorder.iterations.get(job_id, []))
    for job_id, (prompt, output) in submitted.items():
        expected = [1000 + prompt + index for index in range(output)]
        received = cores.received.get(job_id, [])
        assert received == expected[: len(received)]
        if job_id not in disturbed:
            assert received == expected and cores.recorder.ends[job_id][0] is FinishReason.LENGTH
