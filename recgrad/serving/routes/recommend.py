"""`POST /v1/recommend`."""

from __future__ import annotations

from typing import Any

import msgspec

from recgrad.errors import RecgradError
from recgrad.serving.answers import Answer, RequestError, json_answer
from recgrad.serving.recommending import recommend_rows
from recgrad.serving.requests import Row
from recgrad.serving.routes._route import ROUTES, Route
from recgrad.serving.service import HttpRequest

MAX_K = 10_000


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    user: Row | int | str | None = None
    users: list[Row | int | str] | None = None
    k: int = 20
    filter: str | None = None
    exclude: list[int | str] = msgspec.field(default_factory=list)
    seen: str | None = None


_decoder = msgspec.json.Decoder(_Body)


@ROUTES.register("POST /v1/recommend")
class Recommend(Route):
    """The best items of the served index for a user."""

    takes_body = True

    async def answer(self, request: HttpRequest) -> Answer:
        return await self.service.run(self._recommend, request)

    def _recommend(self, request: HttpRequest) -> Answer:
        if self.service.index is None:
            raise RequestError(404, "this server has no index; start it with --index")
        try:
            read = _decoder.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            what = 'send {"user": {…}, "k": 20, "filter": "price < 20", "exclude": [ids]}'
            raise RequestError(400, f"the body cannot be read: {error}; {what}") from None
        if (read.user is None) == (read.users is None):
            raise RequestError(400, "the body must have 'user' or 'users', one of the two")
        if not 1 <= read.k <= MAX_K:
            raise RequestError(400, f"k must be from 1 to {MAX_K:,}, got {read.k}")
        asked = [read.user] if read.users is None else read.users
        if len(asked) > self.service.settings.max_rows:
            raise RequestError(413, f"{len(asked):,} users are more than --max_rows; send fewer at a time")
        users = [self._row(user) for user in asked]
        served = self.service.holder.current
        try:
            index = self.service.index.current(served)
            lists = recommend_rows(
                served,
                index,
                users,
                k=read.k,
                condition=read.filter,
                exclude=read.exclude,
                seen=read.seen,
            )
        except RecgradError as error:
            raise RequestError(422, str(error)) from error
        body: dict[str, Any] = {
            "model": served.version,
            "index": index.manifest["version"],
            "similarity": index.similarity,
        }
        return json_answer(body | (lists[0] if read.users is None else {"users": lists}))

    def _row(self, user: Any) -> Row:
        if isinstance(user, dict):
            return user
        store = self.service.settings.stores.get("user")
        if store is None:
            raise RequestError(
                400,
                f"user {str(user)[:80]!r} is an id, and this server has no stored user features; send its "
                "columns as an object, or start the server with --user_features and --user_key",
            )
        return {store.key: user}
