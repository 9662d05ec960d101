/* Tells Quell how a program's work is going: which time a unit of work is to take, and which it took.
 *
 * Link with libquell_client (.a or .so). Quell may have launched the program, or come later, or not at all: while it is not there,
 * telling of a unit looks for it at most once a second, and otherwise makes no system call. A session belongs to the process that
 * opened it (a forked child's calls do nothing), and one thread uses it. Every call takes NULL and does nothing then.
 * docs/client.md has the shared memory behind it, byte by byte. */
#ifndef QUELL_H
#define QUELL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct quell_session quell_session;

/* The session with Quell, there or not; never NULL. At most one per process. Waits at most 0.3 s, and only if Quell is there. */
quell_session *quell_open(void);
void quell_close(quell_session *session);

/* Whether Quell is there and listens. */
int quell_connected(quell_session *session);

/* Why Quell gives this process no session: a sentence, or NULL where it has not refused any. */
const char *quell_refused(quell_session *session);

/* What the policy wants of each unit, in nanoseconds; 0: it does not say. */
uint64_t quell_deadline(quell_session *session);

/* From now on a unit is to take at most so long. What the policy wants goes before it. */
void quell_set_target(quell_session *session, uint64_t target_ns);

/* What a unit asks of the machine: bytes moved to and from memory, bytes used again and again; 0: unknown. */
void quell_set_demand(quell_session *session, uint64_t bytes_per_unit, uint64_t working_set);

/* A unit has ended just now, and took so long: counted from when it was due, if that is known. */
void quell_unit(quell_session *session, uint64_t took_ns);

/* Frames: a unit begins, and ends. */
void quell_begin(quell_session *session);
void quell_end(quell_session *session);

/* Heartbeats: a unit lasts from one to the next. */
void quell_beat(quell_session *session);

/* What Quell has locked in a cache for this program (reserve.cache = { locked = ... } in its policy): mapped, emptied, its length in
 * *bytes. Once per process. NULL and *bytes 0: nothing is locked, or it was mapped before. NULL and *bytes not 0: it could not be mapped;
 * errno is EINVAL where this thread may run on CPUs of other caches (QUELL_LOCKED_CPUS names those of its cache: sched_setaffinity), ENODEV
 * where the run that locked it has ended. */
void *quell_locked_map(size_t *bytes);
void quell_locked_unmap(void *at, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
