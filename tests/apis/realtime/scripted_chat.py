"""A scripted chat model for conversations: a handler that answers chat completions without a model.

It repeats what was said last, with the number of messages before it; it counts if it is asked to, a number every tenth
of a second, tells a story in five parts, and calls the first tool if it is asked for the weather.
"""

import json
import time

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    return data and [answer(row["body"], context) for row in data]


def answer(asked, context):
    for delta in deltas(asked):
        chunk = json.dumps({"choices": [{"index": 0, "delta": delta}]})
        send_intermediate_predict_response([f"data: {chunk}\n\n"], context.request_ids, "", 200, context)
    usage = {
        "prompt_tokens": len(asked["messages"]),
        "completion_tokens": 2,
        "total_tokens": 2 + len(asked["messages"]),
    }
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    return f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"


def deltas(asked):
    last = asked["messages"][-1]
    text = last["content"] or ""
    if last["role"] == "tool":
        yield {"content": f"The tool said {text}."}
    elif "weather" in text and asked.get("tools"):
        name = asked["tools"][0]["function"]["name"]
        yield {
            "tool_calls": [{"index": 0, "id": "call_1", "function": {"name": name, "arguments": '{"city": "Rome"}'}}]
        }
    elif "count" in text:
        for number in range(1, 100):
            yield {"content": f"This is the number {number}. "}
            time.sleep(0.1)
    elif "story" in text:
        for number in range(1, 6):
            yield {"content": f"This is part {number} of the story. "}
            time.sleep(0.3)
    else:
        yield {"content": f"You said {text}."}
