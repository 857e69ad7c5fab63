-- wrk posts the same request over and over and prints one line of JSON at the end.
--
--   wrk -s load.lua URL -- TEXT COUNT [SEQUENCE_PREFIX]
--
-- The body is TEXT, COUNT times. With a SEQUENCE_PREFIX each thread posts as a sequence of its own: give every connection
-- a thread (-t equal to -c), because wrk does not tell a script which connection a request is for.

local threads = 0

function setup(thread)
    threads = threads + 1
    thread:set("number", threads)
end

function init(args)
    local headers = {}
    if args[3] then
        headers["ts_request_sequence_id"] = args[3] .. number
    end
    message = wrk.format("POST", nil, headers, string.rep(args[1], tonumber(args[2])))
end

function request()
    return message
end

function done(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\nRESULT {"requests": %d, "seconds": %.6f, "median_ms": %.6f, "bad_status": %d, "socket_errors": %d}\n',
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, errors.status,
        errors.connect + errors.read + errors.write + errors.timeout))
end
