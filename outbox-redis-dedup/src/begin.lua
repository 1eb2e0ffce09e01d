-- Takes the key for ARGV[2] ms. 1: taken, also when a repeated call finds its own lease. 2: done. 0: held.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then return 1 end
if value == 'done' then return 2 end
if not value or string.sub(value, 1, 6) == 'lease:' then return 0 end
return redis.error_reply('FOREIGN the key holds what this program did not write')
