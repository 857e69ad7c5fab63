"""The scripts in Lua that the Redis store runs, each atomic over all sequences of a batch.

A sequence is a hash with these fields; times are milliseconds since 1970.

token, owner, until    the lease; until is 0 for a sequence without a holder
expires                when the sequence has been idle for too long, once it has no holder
incarnation, steps     the incarnation's number, and how many further steps of it were applied
closed, state          why it is over, or its state
aside                  present if the state was put aside, because the sequence has been idle for too long
q<slot>, r<slot>       of a kept answer: its incarnation and request id, with a colon between them; and the answer
"""

from typing import Final

from ts.protocol.messages import ENDED
from ts.sequence.stores.store import IDLE

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

#: KEYS: those of the sequences, then those of the states put aside. ARGV: owner, lease, lifetime, time to live of an
#: open sequence, of a closed one (ms), the last slot, an owner that is gone or '', then for each sequence a token and
#: the moment since which the sequence is known not to be idle, by this Redis's clock: Redis may execute a script long
#: after it was sent, even after the sender has given up waiting. Returns Redis's time and a result for each sequence.
ACQUIRE: Final = f"""{_NOW}
local last = tonumber(ARGV[6])
local names = {{'owner', 'until', 'expires', 'steps', 'closed', 'state', 'incarnation'}}
for slot = 0, last do names[#names + 1] = 'q' .. slot end
local results = {{}}
for i = 1, #KEYS / 2 do
    local key, aside = KEYS[i], KEYS[#KEYS / 2 + i]
    local token, active_since = ARGV[6 + 2 * i], math.min(ARGV[7 + 2 * i], now)
    local found = redis.call('HMGET', key, unpack(names))
    local owner, till, expires, steps, closed, state, incarnation = unpack(found, 1, 7)
    if owner and owner ~= '' and owner ~= ARGV[1] and owner ~= ARGV[7] and tonumber(till) > now then
        results[i] = {{0, owner}}
    else
        if not owner then
            steps, closed, incarnation = '0', '', '1'
            redis.call('HSET', key, 'steps', 0, 'closed', '', 'incarnation', 1)
        elseif closed == '' then
            local expired = tonumber(expires) <= active_since and (owner == ARGV[1] or tonumber(till) == 0)
            if redis.call('HDEL', key, 'aside') == 1 then
                state = redis.call('GET', aside)
                redis.call('DEL', aside)
                if not state then
                    expired = true
                elseif not expired then
                    redis.call('HSET', key, 'state', state)
                end
            end
            if expired then
                closed = '{IDLE}'
                redis.call('HDEL', key, 'state')
                redis.call('HSET', key, 'closed', closed)
                redis.call('PEXPIRE', key, ARGV[5])
            end
        end
        redis.call('HSET', key, 'token', token, 'owner', ARGV[1], 'until', now + ARGV[2])
        if closed == '' then
            redis.call('HSET', key, 'expires', now + ARGV[3])
            redis.call('PEXPIRE', key, ARGV[4])
        end
        local requests = {{}}
        for slot = 0, last do requests[slot + 1] = found[8 + slot] end
        results[i] = {{1, steps, closed, closed == '' and state, incarnation, requests}}
    end
end
return {{now, results}}
"""

#: ARGV: until how long from now, then a token for each key.
RENEW: Final = f"""{_NOW}
local results = {{}}
for i, key in ipairs(KEYS) do
    results[i] = 0
    if redis.call('HGET', key, 'token') == ARGV[1 + i] then
        redis.call('HSET', key, 'until', now + ARGV[1])
        results[i] = 1
    end
end
return results
"""

#: KEYS as for ACQUIRE. ARGV: how long a state is put aside, how long an expired sequence is remembered (ms), then for
#: each sequence a token and in how many ms it will have been idle for too long; 0 or less: it has.
RELEASE: Final = f"""{_NOW}
for i = 1, #KEYS / 2 do
    local key, aside = KEYS[i], KEYS[#KEYS / 2 + i]
    local left = tonumber(ARGV[2 + 2 * i])
    if redis.call('HGET', key, 'token') == ARGV[1 + 2 * i] then
        redis.call('HSET', key, 'until', 0)
        if redis.call('HGET', key, 'closed') == '' then
            redis.call('HSET', key, 'expires', now + left)
            redis.call('PEXPIRE', key, math.max(left, 0) + ARGV[2])
            local state = redis.call('HGET', key, 'state')
            if left <= 0 and state then
                redis.call('SET', aside, state, 'PX', ARGV[1])
                redis.call('HDEL', key, 'state')
                redis.call('HSET', key, 'aside', 1)
            end
        end
    end
end
"""

#: ARGV: lease, lifetime, time to live of an open sequence, of a closed one (ms), then for each key in msgpack:
#: [token, incarnation, steps, closed, state or false, [[slot, request id, answer], …]].
COMMIT: Final = f"""{_NOW}
local commits = cmsgpack.unpack(ARGV[5])
local results = {{}}
for i, key in ipairs(KEYS) do
    local token, incarnation, steps, closed, state, answers = unpack(commits[i], 1, 6)
    results[i] = 0
    if redis.call('HGET', key, 'token') == token then
        local fields = {{'until', closed == '' and now + ARGV[1] or 0, 'expires', now + ARGV[2],
            'incarnation', incarnation, 'steps', steps, 'closed', closed}}
        if state then
            fields[#fields + 1], fields[#fields + 2] = 'state', state
        else
            redis.call('HDEL', key, 'state')
        end
        for _, answer in ipairs(answers) do
            fields[#fields + 1], fields[#fields + 2] = 'q' .. answer[1], incarnation .. ':' .. answer[2]
            fields[#fields + 1], fields[#fields + 2] = 'r' .. answer[1], answer[3]
        end
        redis.call('HSET', key, unpack(fields))
        redis.call('PEXPIRE', key, closed == '' and ARGV[3] or ARGV[4])
        results[i] = 1
    end
end
return results
"""

#: ARGV: time to live (ms), then for each key its token.
END: Final = f"""
for i, key in ipairs(KEYS) do
    if redis.call('HGET', key, 'token') == ARGV[1 + i] then
        redis.call('HDEL', key, 'state')
        redis.call('HSET', key, 'closed', '{ENDED}', 'until', 0)
        redis.call('PEXPIRE', key, ARGV[1])
    end
end
"""
