/* A libnvidia-ml.so.1 for tests: its GPUs are what the file in FAKE_NVML says, line by line.
 *
 *   INDEX PCI CODE RECOVERY ECC WIDTH THROTTLE LINKS   one GPU; CODE is what its functions return;
 *                                                      those but 15 are also its handle's if > 900
 *   link LINK ERRORS                                   of each GPU; only such links can be read
 *   xid INDEX NUMBER                                   an event, reported once per process
 *   count N                                            a count that is not the number of lines
 *   burst INDEX PCIE NVLINK REPLAYS CLOCK BITS         a GPU's counters grow by so many MB, MB and
 *                                                      replays a second; its clock and throttling
 *   stall                                              readings answer, a burst's never do
 *   hang                                               the next call never returns
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { double pcie, nvlink, replays; int clock, bits; } Burst;
static Burst bursts[64];
static int stalls;
typedef struct { int code, recovery, width, throttle, links; unsigned long long ecc; char pci[32]; } Gpu;
static Gpu gpus[64];
static int num, claimed, xid_gpu, xid_number, num_events, link_errors[18];

static void load(void) {
    char line[256];
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    num = 0, claimed = -1, xid_number = 0, stalls = 0;
    memset(bursts, 0, sizeof bursts);
    memset(link_errors, -1, sizeof link_errors);
    while (file && fgets(line, sizeof line, file)) {
        Gpu g = {0};
        int index;
        if (!strncmp(line, "hang", 4)) for (;;) sleep(1);
        if (!strncmp(line, "stall", 5)) { stalls = 1; continue; }
        Burst b;
        if (sscanf(line, "burst %d %lf %lf %lf %d %d", &index, &b.pcie, &b.nvlink, &b.replays,
                   &b.clock, &b.bits) == 6) { bursts[index] = b; continue; }
        if (sscanf(line, "xid %d %d", &xid_gpu, &xid_number) == 2) continue;
        int link, errors;
        if (sscanf(line, "link %d %d", &link, &errors) == 2) { link_errors[link] = errors; continue; }
        if (sscanf(line, "count %d", &claimed) == 1) continue;
        if (sscanf(line, "%d %31s %d %d %llu %d %d %d", &index, g.pci, &g.code, &g.recovery, &g.ecc,
                   &g.width, &g.throttle, &g.links) == 8)
            gpus[num++] = g;
    }
    if (file) fclose(file);
}

static Gpu *gpu(void *handle) { return &gpus[(long)handle - 1]; }

int nvmlInit_v2(void) { return getenv("FAKE_NVML_BROKEN") ? 999 : 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "570.158.01"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { load(); *count = claimed >= 0 ? claimed : num; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **handle) {
    if (i >= (unsigned)num) return 2;
    *handle = (void *)(long)(i + 1);
    return gpus[i].code == 15 || gpus[i].code > 900 ? gpus[i].code : 0;
}
int nvmlDeviceGetUUID(void *h, char *text, unsigned n) { snprintf(text, n, "GPU-%s", gpu(h)->pci); return 0; }
int nvmlDeviceGetName(void *h, char *text, unsigned n) { (void)h; snprintf(text, n, "Fake H100"); return 0; }
int nvmlDeviceGetPciInfo_v3(void *h, char *info) {
    memset(info, 0, 68);
    snprintf(info + 36, 32, "%s", gpu(h)->pci);
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *h, int type, int counter, unsigned long long *n) {
    *n = gpu(h)->ecc;
    return type == 1 && counter == 0 ? gpu(h)->code : 2;
}
int nvmlDeviceGetCurrPcieLinkWidth(void *h, unsigned *width) { *width = gpu(h)->width; return gpu(h)->code; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *bits) {
    *bits = gpu(h)->throttle | bursts[(long)h - 1].bits;
    return gpu(h)->code;
}
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *on) {
    *on = link < (unsigned)gpu(h)->links;
    return link < 4 ? gpu(h)->code : 3;
}
int nvmlDeviceGetNvLinkErrorCounter(void *h, unsigned link, int counter, unsigned long long *n) {
    *n = link_errors[link];
    return counter == 0 && link_errors[link] >= 0 ? gpu(h)->code : 3;
}
int nvmlDeviceGetClockInfo(void *h, int type, unsigned *mhz) {
    *mhz = bursts[(long)h - 1].clock;
    return type == 1 && *mhz ? gpu(h)->code : 3;
}
int nvmlDeviceGetUtilizationRates(void *h, unsigned *rates) { rates[0] = 90, rates[1] = 40; return gpu(h)->code; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *h, unsigned *generation) { *generation = 5; return gpu(h)->code; }

/* A nvmlFieldValue_t: id 0, scope 4, type 24, code 28, value 32. */
static void answer(void *h, char *field) {
    Burst *b = &bursts[(long)h - 1];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double s = now.tv_sec + now.tv_nsec / 1e9;
    unsigned long long value = 0;
    int type = 3, code = 0, all = *(unsigned *)(field + 4) == 0xFFFFFFFFu;
    switch (*(unsigned *)field) {
    case 230: value = gpu(h)->recovery, type = 1; break;
    case 186: value = 412000, type = 1; break;
    case 197: case 198: value = (unsigned)(unsigned long long)(s * b->pcie * 1e6), type = 1, code = b->pcie ? 0 : 3; break;
    case 138: case 139: value = s * b->nvlink * 1e6 / 1024, code = b->nvlink && all ? 0 : 3; break;
    case 94: case 52: value = s * b->replays; break;
    case 90: value = 26562; break;
    case 91: value = 18, type = 1; break;
    }
    *(int *)(field + 24) = type, *(int *)(field + 28) = gpu(h)->code ? gpu(h)->code : code;
    *(unsigned long long *)(field + 32) = type == 1 ? value | 0xABCDull << 32 : value;
}
int nvmlDeviceGetFieldValues(void *h, int n, char *fields) {
    if (n > 2 && stalls) for (;;) sleep(1);
    for (int i = 0; i < n; i++) answer(h, fields + 40 * i);
    return 0;
}
int nvmlEventSetCreate(void **set) { *set = (void *)1; return 0; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long kinds, void *set) { return h && set && kinds == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, char *data, unsigned ms) {
    if (!set || ms || !xid_number || num_events) return 10;
    num_events = 1;
    *(void **)data = (void *)(long)(xid_gpu + 1);
    *(unsigned long long *)(data + 8) = 8;
    *(unsigned long long *)(data + 16) = xid_number;
    return 0;
}
