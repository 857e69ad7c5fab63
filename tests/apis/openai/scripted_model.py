"""A scripted model for clients of Responses: a handler that answers chat completions without a model.

It calls the first tool with the arguments ``{"city": "Rome"}`` until a tool has answered. It thinks if the last message
has "think", answers in JSON if that is asked for, and otherwise repeats what it got.
"""

import json

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    return data and [answer(index, row["body"], context) for index, row in enumerate(data)]


def answer(index, asked, context):
    if "colour" in asked:
        context.set_response_status(400, "Bad Request", index)
        return json.dumps({"error": {"message": "no colours", "param": "colour", "code": "unsupported_parameter"}})
    message = said(asked)
    told = json.dumps(asked["messages"])
    usage = {"prompt_tokens": len(told), "completion_tokens": 2, "total_tokens": len(told) + 2}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    if not asked.get("stream"):
        return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
    for delta in deltas(message):
        chunk = json.dumps({"choices": [{"index": 0, "delta": delta}]})
        send_intermediate_predict_response([f"data: {chunk}\n\n"], context.request_ids, "", 200, context)
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
    return f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"


def said(asked):
    last = asked["messages"][-1]
    text = last["content"] if isinstance(last["content"], str) else json.dumps(last["content"])
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"The tool said {text}."}
    if asked.get("tools") and asked["tool_choice"] != "none":
        name = asked["tools"][0]["function"]["name"]
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": '{"city": "Rome"}'}}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if asked.get("response_format", {}).get("type") == "json_schema":
        return {"role": "assistant", "content": '{"city": "Rome"}'}
    thought = {"reasoning": "I think."} if "think" in text else {}
    return {"role": "assistant", "content": json.dumps(asked["messages"]), **thought}


def deltas(message):
    yield {"role": "assistant", "content": ""}
    if "reasoning" in message:
        yield {"reasoning": message["reasoning"]}
    for number, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield {"tool_calls": [{"index": number, **call, "function": function | {"arguments": ""}}]}
        for piece in (function["arguments"][:5], function["arguments"][5:]):
            yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}
    if message["content"]:
        yield {"content": message["content"]}
