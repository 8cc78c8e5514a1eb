"""``GET /v1/jobs/{id}``: 202 until the job is answered, then its answer. ``Prefer: wait=N`` holds up to N seconds.

While its lane's workers are given up the answer is that (``PROVISIONING_FAILED``), and the job stays queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from sie_broker import claim, jobs
from sie_broker.contract import Broker
from sie_broker.jobs import Job
from sie_broker.merge import collect, whole
from sie_broker.records import Reply
from sie_ingress import answer, memory
from sie_ingress.admission import Admission
from sie_ingress.answer import Answers
from sie_ingress.follow import JOB_S, missed
from sie_ingress.headers import by_name
from sie_ingress.held import LAST_LOOK_S, Held
from sie_ingress.lanes import Lanes
from sie_ingress.settings import Settings
from sie_sdk import wire
from sie_sdk.errors import JobNotFoundError, UnavailableError


class Jobs:
    """The job route."""

    def __init__(
        self, broker: Broker, lanes: Lanes, admission: Admission, held: Held, answers: Answers, settings: Settings
    ) -> None:
        self._broker = broker
        self._lanes = lanes
        self._admission = admission
        self._held = held
        self._answers = answers
        self._settings = settings

    async def __call__(self, request: Request) -> Response:
        job_id = request.path_params["job"]
        held = answer.prefer_wait(by_name(request.scope).get("prefer"), self._settings.request_timeout_s)
        reply, job = await asyncio.gather(jobs.result(self._broker.jobs, job_id), jobs.find(self._broker.jobs, job_id))
        # One in parts has none of its own: it would be another request's, which was refused too late.
        if reply is not None and not (job is not None and job.sizes):
            return await self._answered(request, job_id, [reply], ())
        if job is None:
            raise JobNotFoundError(
                f"There is no job {job_id!r}.",
                field="job",
                hint="A job and its result are kept for SIE_JOB_LIFETIME_S, an hour where it is not set.",
            )
        given_up = self._lanes.given_up(job.lane) is not None
        if (replies := await self._replies(job, 0.0 if given_up else held or 0.0)) is not None:
            return await self._answered(request, job_id, replies, job.sizes)
        if await missed(self._broker, job):
            raise UnavailableError(
                f"Job {job_id!r} waited too long and is queued no more, or another caller of its key took its answer.",
                retry_after=JOB_S,
                hint="Look again; if it stays so, send the request again with its Idempotency-Key: it is done anew.",
            )
        if not self._lanes.live(job.lane):
            self._broker.wake(job.lane)
        if (refusal := self._lanes.given_up(job.lane, job.id)) is not None:
            raise refusal
        retry_after, late_s = await self._lanes.retry_after(job.lane), await self._lanes.late_s(job.lane)
        return answer.from_job(job, retry_after, answer.waited(held), late_s)

    async def _replies(self, job: Job, hold_s: float) -> list[Reply] | None:
        if hold_s <= 0:
            return await collect(self._broker.jobs, job, 0.0)
        coming = collect(self._broker.jobs, job, hold_s)
        return await self._held.within(hold_s + LAST_LOOK_S, coming, job.lane)

    async def _answered(
        self, request: Request, job_id: str, replies: Sequence[Reply], sizes: Sequence[int]
    ) -> Response:
        self._admission.answered(job_id)
        memory.of(request.scope).take(sum(map(claim.size, replies)))
        reply = await whole(self._broker.payloads, job_id, replies, sizes, self._settings.max_reply_bytes)
        # There is no body to take the format from; JSON is what a person with curl can read.
        return await self._answers.from_reply(reply, by_name(request.scope).get("accept"), wire.JSON)
