"""The scripts in Lua that the Redis store runs, each atomic over all sequences of a batch.

A sequence is a hash with these fields; times are milliseconds since 1970, by Redis's clock.

fence, owner, until   the lease; until is 0 for a sequence without a holder
order                 how many commits were made with the lease
lease, lifetime       for how long the holder takes leases, and a sequence may be idle
expires               when a sequence without a holder has been idle for too long
closed                why the sequence is over
version, states       the version of the model that began it, and that of its states
head, earlier         sealed: the record's head, the digests of the tokens of all incarnations
ids                   how long the string of the digests of request ids is; the latest are in the last k<slot>
reading               incarnation and number of the last step of a state that a worker reads which that may end
skip                  how many pieces of the log are before the latest state in it; missing if it has had none
k<slot>, a<slot>      sealed, of a kept step: what is known of it, and its answer

A hash without a head is a lease on a sequence that has not begun. The keys of state, log and ids follow from that of
the hash (`ts.sequences.redis.redis_keys`), so that only the hashes are sent: all keys of a model are in one slot.

Whatever a key holds, only its own sequence suffers: what may fail is called by ``pcall``, and before anything of that
sequence is written.
"""

from typing import Final

from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.stores.store import IDLE

#: What all scripts begin with.
_COMMON: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local prefix = string.match(KEYS[1], '^tsq:{.-}')
local function other(kind, key) return prefix .. kind .. string.sub(key, #prefix + 1) end
local function holds(key, fence)
    local found = redis.pcall('HGET', key, 'fence')
    return type(found) == 'string' and found == fence
end
"""

#: Defines ``read``, which returns the fields of a sequence and its ids; false if there is none; or nil and a problem.
#: ``most`` is how many bytes of ids are wanted.
_READ: Final = f"""
local required = {{'fence', 'owner', 'until', 'lease', 'lifetime', 'expires', 'closed'}}
local names = {{'version', 'states', 'head', 'earlier', 'ids', 'skip', 'reading', unpack(required)}}
local first = #names + 1
for slot = 0, {MOST_KEPT_ANSWERS} do names[first + slot] = 'k' .. slot end
local function read(key, most)
    local found = redis.pcall('HMGET', key, unpack(names))
    if found.err then return nil, found.err end
    local record = {{kept = {{}}}}
    for index = 1, #names do
        if index < first then
            record[names[index]] = found[index]
        elseif found[index] then
            record.kept[#record.kept + 1] = found[index]
        end
    end
    if not record.fence and redis.call('EXISTS', key) == 0 then return false end
    for _, name in ipairs({{'until', 'lease', 'lifetime', 'expires'}}) do record[name] = tonumber(record[name]) end
    for _, name in ipairs(required) do
        if not record[name] then return nil, 'its field ' .. name .. ' is missing or no number' end
    end
    if record.head and not (record.version and record.states and record.earlier) then
        return nil, 'its version is missing'
    end
    local size = redis.pcall('STRLEN', other('ids', key))
    if type(size) == 'table' then return nil, 'its request ids: ' .. size.err end
    if size ~= tonumber(record.ids or 0) then return nil, 'its request ids are incomplete' end
    record.ids = size > 0 and redis.call('GETRANGE', other('ids', key), -most, -1) or ''
    record.cut = size > tonumber(most) and 1 or 0
    return record
end
"""

#: ARGV: owner, version, version of states, lease, lifetime, time to live of an abandoned state, of an open
#: sequence, of a closed one (ms), bytes of ids, Redis's time as the sender knows it (so that a jump of
#: the clock ends no lease), then for each sequence: a fence, the moment since which it is known not to be idle, and an
#: owner that is gone or ''. The moments are Redis's, since Redis may execute a script long after it was sent, even
#: after the sender has given up waiting.
#:
#: Returns Redis's time and a result for each sequence:
#: 0, owner: another server holds it.
#: 1, closed, head, version, version of states, earlier, ids, whether ids are missing, kept steps, state, problem with
#: the state, whether it has been idle for too long, log, the field reading: the lease is taken.
#: 2, version, version of states, head, the versions that are served: it belongs to another version.
#: 3, problem: it is damaged.
ACQUIRE: Final = f"""{_COMMON}{_READ}
local owner, version, states = unpack(ARGV, 1, 3)
local lease, lifetime, state_left, open_left, closed_left, most, known = unpack(ARGV, 4, 10)
local is_known = math.min(now, known)

local function taken(record, state, damage, is_idle, log)
    return {{
        1, record.closed, record.head, record.version, record.states, record.earlier, record.ids, record.cut,
        record.kept, state, damage, is_idle, log, record.reading
    }}
end

local function expire(key, left)
    redis.call('PEXPIRE', key, left)
    redis.call('PEXPIRE', other('ids', key), left)
end

local function acquire(key, fence, active_since, gone)
    local record, problem = read(key, most)
    if problem then return {{3, problem}} end
    record = record or {{
        closed = '', owner = '', head = false, version = false, states = false, earlier = false, ids = '', cut = 0,
        kept = {{}}, reading = false
    }}
    local is_idle = false
    if record.closed == '' and record.head then
        -- Before it is released, it counts as in use since the last step.
        local expires = record['until'] == 0 and record.expires or record['until'] - record.lease + record.lifetime
        is_idle = expires <= now
        if expires <= math.min(active_since, now) and (record.owner == owner or record['until'] == 0) then
            record.closed = '{IDLE}'
            redis.call('HSET', key, 'closed', '{IDLE}', 'until', 0)
            redis.call('DEL', other('state', key), other('log', key))
            expire(key, closed_left)
        elseif record.version ~= version and (record.states == '' or record.states ~= states) then
            local served = redis.pcall('ZRANGEBYSCORE', prefix .. 'served', now, '+inf')
            return {{2, record.version, record.states, record.head, served}}
        end
    end
    if record.owner ~= '' and record.owner ~= owner and record.owner ~= gone then
        -- A lease that ends later than it may was taken before the clock was set back.
        local till = math.min(record['until'], now + record.lease)
        if till > is_known then
            if till < record['until'] then redis.call('HSET', key, 'until', till) end
            redis.pcall('PUBLISH', prefix .. 'asked:' .. record.owner, string.sub(key, #prefix + 2))
            return {{0, record.owner}}
        end
    end
    local limits = {{'until', now + lease, 'lease', lease, 'lifetime', lifetime, 'expires', record.expires or 0}}
    redis.call('HSET', key, 'fence', fence, 'order', 0, 'owner', owner, 'closed', record.closed, unpack(limits))
    if record.closed ~= '' then
        return taken(record, false, '', 0, {{}})
    end
    expire(key, open_left)
    local state, damage = redis.pcall('GET', other('state', key)), ''
    if type(state) == 'table' then state, damage = false, state.err end
    if state then redis.call('PEXPIRE', other('state', key), state_left) end
    local log = redis.pcall('LRANGE', other('log', key), record.skip or 0, -1)
    if log.err or #log == 0 then log = redis.pcall('LRANGE', other('log', key), 0, -1) end
    if log.err then log, damage = {{}}, log.err end
    if #log > 0 then redis.call('PEXPIRE', other('log', key), state_left) end
    return taken(record, state, damage, is_idle and 1 or 0, log)
end

local results = {{}}
for i, key in ipairs(KEYS) do
    results[i] = acquire(key, ARGV[8 + 3 * i], tonumber(ARGV[9 + 3 * i]), ARGV[10 + 3 * i])
end
return {{now, results}}
"""

#: ARGV: bytes of ids. Returns for the only sequence: nothing if it has not begun;
#: 1, closed, head, version, version of states, earlier, ids, whether ids are missing, kept steps; or 3, problem.
PEEK: Final = f"""{_COMMON}{_READ}
local record, problem = read(KEYS[1], ARGV[1])
if problem then return {{3, problem}} end
if not record or not record.head then return {{}} end
return {{
    1, record.closed, record.head, record.version, record.states, record.earlier, record.ids, record.cut, record.kept
}}
"""

#: ARGV: until how long from now, then a fence for each key.
RENEW: Final = f"""{_COMMON}
local results = {{}}
for i, key in ipairs(KEYS) do
    results[i] = 0
    if holds(key, ARGV[1 + i]) then
        redis.call('HSET', key, 'until', now + ARGV[1])
        results[i] = 1
    end
end
return results
"""

#: ARGV: for each sequence a fence, and the field reading; '' for none.
NOTE_READING: Final = f"""{_COMMON}
for i, key in ipairs(KEYS) do
    if holds(key, ARGV[2 * i - 1]) then
        local reading = ARGV[2 * i]
        if reading == '' then redis.call('HDEL', key, 'reading') else redis.call('HSET', key, 'reading', reading) end
    end
end
"""

#: ARGV: how long a state is kept, an expired sequence is remembered after it has been idle for too long (ms),
#: then for each sequence a fence and in how many ms it will have been idle for too long; 0 or less: it has.
RELEASE: Final = f"""{_COMMON}
for i, key in ipairs(KEYS) do
    if holds(key, ARGV[1 + 2 * i]) then
        local closed, head = unpack(redis.call('HMGET', key, 'closed', 'head'))
        if not head then
            redis.call('DEL', key)
        else
            redis.call('HSET', key, 'until', 0, 'fence', '')
            if closed == '' then
                local left = tonumber(ARGV[2 + 2 * i])
                redis.call('HSET', key, 'expires', now + left)
                left = math.max(left, 0)
                redis.call('PEXPIRE', other('state', key), left + ARGV[1])
                redis.call('PEXPIRE', other('log', key), left + ARGV[1])
                redis.call('PEXPIRE', key, left + ARGV[2])
                redis.call('PEXPIRE', other('ids', key), left + ARGV[2])
            end
        end
    end
end
"""

#: ARGV: in msgpack [lease, time to live of a state, of an open sequence, of a closed one (ms), bytes of ids,
#: commits], the commits for each key [fence, order, state or false, fields, ids for the string of ids, what is special
#: or false, log]. The fields are until, which the script sets, head, and those of kept steps. Special are: [closed,
#: whether the expiry of an open sequence has to be put off, fields of an incarnation that begins or false]. The log is
#: false if there is none and was none, or [what becomes of it, number of its first step until now, number of the first
#: piece, pieces, how many it loses at its beginning]: 'end', 'begin', 'begin without a state' or 'append'.
COMMIT: Final = f"""{_COMMON}
local lease, state_left, open_left, closed_left, most, commits = unpack(cmsgpack.unpack(ARGV[1]), 1, 6)

local function add(fields, name, value)
    local count = #fields
    fields[count + 1], fields[count + 2] = name, value
end

-- Adds to the ids without rewriting them each time; returns how long they are, nil if that is impossible.
local function append(key, new_ids)
    local length = redis.pcall('APPEND', key, new_ids)
    if type(length) == 'table' then return nil end
    if length <= 2 * most then return length end
    redis.call('SET', key, redis.call('GETRANGE', key, -most, -1), 'KEEPTTL')
    return most
end

local function begin(key, fence, fields, begun)
    local kept = {{'owner', 'lease', 'lifetime', 'expires'}}
    local values = redis.call('HMGET', key, unpack(kept))
    redis.call('DEL', key, other('ids', key), other('log', key))
    for index = 1, #begun, 2 do add(fields, begun[index], begun[index + 1]) end
    add(fields, 'fence', fence)
    for index, name in ipairs(kept) do add(fields, name, values[index]) end
end

-- A piece of a step that has one already replaces that. Returns whether it was possible.
local function write_log(key, fate, log_from, first, pieces, dropped)
    if fate ~= 'append' then redis.call('DEL', key) end
    local length = redis.pcall('LLEN', key)
    if type(length) == 'table' then return false end
    for index, piece in ipairs(pieces) do
        local place = first + index - 1 - log_from
        if place < length then redis.call('LSET', key, place, piece) else redis.call('RPUSH', key, piece) end
    end
    if dropped > 0 then redis.call('LTRIM', key, dropped, -1) end
    return true
end

-- Redis may run a commit again, or long after those that followed it: its order among the commits of its lease tells.
-- So it does if Redis has lost the commits before it; then only one that writes all there is can be written.
-- Returns whether it was written, or 2 if Redis has lost commits of its lease.
local function commit(key, fence, order, state, fields, new_ids, special, log)
    local found = redis.pcall('HMGET', key, 'fence', 'order')
    if found.err or found[1] ~= fence then return 0 end
    local done = tonumber(found[2]) or 0
    if order <= done then return order == done and 1 or 0 end
    if order > done + 1 and not (special and special[3]) then return 2 end
    add(fields, 'order', order)
    local state_key = other('state', key)
    fields[2] = now + lease
    if special and special[3] then begin(key, fence, fields, special[3]) end
    if new_ids ~= '' then
        local length = append(other('ids', key), new_ids)
        if not length then return 0 end
        add(fields, 'ids', length)
    end
    if log and not write_log(other('log', key), unpack(log, 1, 5)) then return 0 end
    if state then
        redis.call('SET', state_key, state, 'KEEPTTL')
    elseif not log or log[1] == 'end' or log[1] == 'begin without a state' then
        redis.call('DEL', state_key)
    end
    local left
    if special then
        local closed, put_off = special[1], special[2]
        if closed ~= '' then
            fields[2], left = 0, closed_left
            add(fields, 'closed', closed)
        elseif put_off then
            left = open_left
            redis.call('PEXPIRE', state_key, state_left)
            redis.call('PEXPIRE', other('log', key), state_left)
        end
    end
    redis.call('HSET', key, unpack(fields))
    if left then
        redis.call('PEXPIRE', key, left)
        redis.call('PEXPIRE', other('ids', key), left)
    end
    return 1
end

local results = {{}}
for i, each in ipairs(commits) do results[i] = commit(KEYS[i], unpack(each, 1, 7)) end
return results
"""

#: ARGV: time to live (ms), a reason, then for each key its fence.
END: Final = f"""{_COMMON}
for i, key in ipairs(KEYS) do
    if holds(key, ARGV[2 + i]) then
        redis.call('DEL', other('state', key), other('log', key))
        if redis.call('HEXISTS', key, 'head') == 0 then
            redis.call('DEL', key)
        else
            redis.call('HSET', key, 'closed', ARGV[2], 'until', 0)
            redis.call('PEXPIRE', key, ARGV[1])
            redis.call('PEXPIRE', other('ids', key), ARGV[1])
        end
    end
end
"""
