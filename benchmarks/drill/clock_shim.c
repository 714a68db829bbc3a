/* A wall clock for one run: LD_PRELOAD this, and name by HEADWAY_CLOCK a file of 8 bytes, the offset in ns.
 *
 * The monotonic clock stays. Deadlines that were made from this clock are turned back into the kernel's
 * before it waits for them; a number of seconds below 1e9 is a monotonic deadline and is left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t BILLION = 1000000000;
static volatile const int64_t *shared;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("HEADWAY_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) shared = mapped;
}

static void add(struct timespec *t, int64_t ns) {
    int64_t total = (int64_t)t->tv_sec * BILLION + t->tv_nsec + ns;
    t->tv_sec = total / BILLION;
    t->tv_nsec = total % BILLION;
}

static int64_t offset(void) { return shared ? *shared : 0; }

static void *next(const char *name, const char *version) {
    void *found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
    return found ? found : dlsym(RTLD_NEXT, name);
}

#define REAL(name, version) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)next(#name, version);

int clock_gettime(clockid_t clock, struct timespec *t) {
    REAL(clock_gettime, NULL)
    int rc = real(clock, t);
    if (!rc && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) add(t, offset());
    return rc;
}

int gettimeofday(struct timeval *t, void *zone) {
    struct timespec now;
    (void)zone;
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return rc;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

static const struct timespec *kernels(const struct timespec *given, struct timespec *own) {
    if (!given || given->tv_sec < BILLION) return given;
    *own = *given;
    add(own, -offset());
    return own;
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
    struct timespec own;
    REAL(pthread_cond_timedwait, "GLIBC_2.3.2")
    return real(c, m, kernels(t, &own));
}

int sem_timedwait(sem_t *s, const struct timespec *t) {
    struct timespec own;
    REAL(sem_timedwait, NULL)
    return real(s, kernels(t, &own));
}
