-- wrk posts the same request over and over and prints one line of JSON at the end. Each head differs from all others, as
-- those of real clients do: it has a header with a number of its own.
--
--   wrk -s load.lua URL -- BODY_FILE SEQUENCE_PREFIX [HEADER VALUE]...
--
-- In values of headers {n} stands for a number that no other request has, as 16 hexadecimal digits, and {step} for how
-- many requests of its thread a request follows, itself included.
--
-- With a SEQUENCE_PREFIX that is not empty each thread posts as a sequence of its own: give every connection a thread
-- (-t equal to -c), because wrk does not tell a script which connection a request is for.

local threads = 0
local sent = 0

function setup(thread)
    threads = threads + 1
    thread:set("number", threads)
end

function init(args)
    local headers = {["X-Request-Number"] = "{n}"}
    for i = 3, #args, 2 do
        headers[args[i]] = args[i + 1]
    end
    if args[2] ~= "" then
        headers["ts_request_sequence_id"] = args[2] .. number
    end
    local file = assert(io.open(args[1], "rb"))
    body = file:read("*a")
    file:close()
    local message = wrk.format("POST", nil, headers, body)
    head = message:sub(1, #message - #body)
    -- wrk calls request() once before the load to look at the first thread's request, and does not send it.
    sent = number == 1 and -1 or 0
end

function request()
    sent = sent + 1
    local n, step = string.format("%04x%012x", number or 0, math.max(sent, 0)), tostring(math.max(sent, 0))
    return head:gsub("{(%a+)}", {n = n, step = step}) .. body
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\nRESULT {"requests": %d, "seconds": %.6f, "median_ms": %.6f, "bad_status": %d, "socket_errors": %d}\n',
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout))
end
