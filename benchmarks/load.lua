-- wrk posts the same request over and over and prints one line of JSON at the end. Each head differs from all others, as
-- those of real clients do: it has a header with a number of its own.
--
--   wrk -s load.lua URL -- BODY_FILE SEQUENCE_PREFIX [HEADER VALUE]...
--
-- With a SEQUENCE_PREFIX that is not empty each thread posts as a sequence of its own: give every connection a thread
-- (-t equal to -c), because wrk does not tell a script which connection a request is for.

local threads = 0
local NUMBER = "X-Request-Number: "
local sent = 0

function setup(thread)
    threads = threads + 1
    thread:set("number", threads)
end

function init(args)
    local headers = {}
    for i = 3, #args, 2 do
        headers[args[i]] = args[i + 1]
    end
    if args[2] ~= "" then
        headers["ts_request_sequence_id"] = args[2] .. number
    end
    local file = assert(io.open(args[1], "rb"))
    headers["X-Request-Number"] = "0"
    local message = wrk.format("POST", nil, headers, file:read("*a"))
    local at = message:find(NUMBER, 1, true) + #NUMBER
    before, behind = message:sub(1, at - 1) .. (number or 0) .. "-", message:sub(at + 1)
    file:close()
end

function request()
    sent = sent + 1
    return before .. sent .. behind
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\nRESULT {"requests": %d, "seconds": %.6f, "median_ms": %.6f, "bad_status": %d, "socket_errors": %d}\n',
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout))
end
