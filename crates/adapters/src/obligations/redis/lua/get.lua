-- get: ARGV: id. Answers the server's time, and how it stands if it is there.

return { digits(now_ms()), described(ARGV[2]) or {} }
