"""How columns of logs are usually called."""

from __future__ import annotations

import re

USERS = ("user_id", "userid", "uid", "user", "member_id", "customer_id", "visitor_id", "visitorid")
ITEMS = (
    "item_id",
    "itemid",
    "iid",
    "item",
    "video_id",
    "product_id",
    "article_id",
    "movie_id",
    "movieid",
    "ad_id",
    "adgroup_id",
    "news_id",
    "song_id",
    "business_id",
    "asin",
    "sku",
    "photo_id",
    "doc_id",
)
LABELS = ("label", "is_click", "click", "clicked", "clk", "target", "y", "is_conversion", "purchase")
TIMES = (
    "timestamp",
    "time_ms",
    "ts",
    "time",
    "event_time",
    "datetime",
    "time_stamp",
    "unixtime",
    "date",
    "day",
)
TIME_NAME = re.compile(
    r"(^|_)(timestamp|time_?stamp|datetime|date|time_ms|ts|unixtime)$|_(at|time)$", re.IGNORECASE
)
OUTCOME = re.compile(
    r"(^|_)(label|target|click|clicked|clk|like|liked|dislike|hate|follow|comment|share|forward|collect"
    r"|favou?r(ite)?|purchase|purchased|buy|bought|order|cart|convert|converted|conversion|pay|paid|gmv"
    r"|revenue|rating|reward|view|long_view|finish|profile_enter|play_time|watch_time|dwell|stay_time"
    r"|play_duration)(_?\d+|_ms|_secs?|_time)?$",
    re.IGNORECASE,
)
CODE_NAME = re.compile(r"(^|_)(id|ids|code|zip|type|category|cat|brand|class|hash|tag)\d*$", re.IGNORECASE)
NUMBER_NAME = re.compile(
    r"(^|_)(num|count|cnt|n|age|days?|price|amount|size|width|height|len|length|sum|total|ms|secs?)$",
    re.IGNORECASE,
)
WEIGHT = re.compile(r"(^|_)(instance|sample|row|case)_?weight$", re.IGNORECASE)
SEPARATORS = (",", "|", ";", "\x1d", "\x03", "\x02", " ")
RATING = re.compile(r"(^|_)(rating|ratings|stars?|score|grade|count|cnt|num)\d*$", re.IGNORECASE)
