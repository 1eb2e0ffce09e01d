-- So that the tests see who waits for a lock.
GRANT PROCESS ON *.* TO 'outbox'@'%';
