/* A libnvidia-ml.so.1 whose GPUs are the lines of the file $FAKE_NVML, read anew at each call.
 *
 * A line "gpu PCI ERROR USED UTILIZATION POWER TEMPERATURE ECC PENDING FAILED WIDTH MAX REASONS
 * HANDLE MEMORY" is a GPU; ERROR is what calls with it return, 0 is none, HANDLE what the call for its
 * handle does, MEMORY what the one for its memory does. A line "xid GPU NUMBER" is an event, given
 * once, and "mig GPU UUID" an instance. "init ERROR" is what nvmlInit_v2 returns, "hang" makes calls never return, "late" makes
 * them wait until the file has no such line, and "crash" ends the process. Signatures are those of NVIDIA's reference of the library.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { char pci[32]; u64 of[16]; } Gpu;
enum { ERROR, USED, UTILIZATION, POWER, TEMPERATURE, ECC, PENDING, FAILED, WIDTH, MAX, REASONS, HANDLE, MEMORY };
enum { NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10 };

static Gpu gpus[16];
static int count, given, events, init_error;
static struct { int gpu; u64 number; } xids[64];
static struct { int gpu; char uuid[64]; } instances[8];
static int divided;

static void load(void) {
    char line[256];
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    count = events = divided = init_error = 0;
    while (file && fgets(line, sizeof line, file)) {
        Gpu *gpu = &gpus[count];
        u64 *of = gpu->of;
        if (sscanf(line, "gpu %31s %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu", gpu->pci, of,
                   of + 1, of + 2, of + 3, of + 4, of + 5, of + 6, of + 7, of + 8, of + 9, of + 10, of + 11, of + 12) == 14)
            count++;
        else if (sscanf(line, "xid %d %llu", &xids[events].gpu, &xids[events].number) == 2)
            events++;
        else if (sscanf(line, "mig %d %63s", &instances[divided].gpu, instances[divided].uuid) == 2)
            divided++;
        else if (!strncmp(line, "hang", 4))
            for (;;) pause();
        else if (!strncmp(line, "crash", 5))
            abort();
        else if (!strncmp(line, "late", 4)) {
            fclose(file);
            usleep(10000);
            load();
            return;
        }
        sscanf(line, "init %d", &init_error);
    }
    if (file) fclose(file);
}

static int number(void *device, int what, unsigned *found) {
    Gpu *gpu = device;
    load();
    *found = (unsigned)gpu->of[what];
    return (int)gpu->of[ERROR];
}

const char *nvmlErrorString(int code) {
    return code == 15 ? "GPU is lost" : code == 18 ? "Driver/library version mismatch" : "Unknown Error";
}

int nvmlInit_v2(void) { load(); return init_error; }

int nvmlDeviceGetCount_v2(unsigned *found) { load(); *found = (unsigned)count; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    load();
    *device = &gpus[index];
    return (int)gpus[index].of[HANDLE];
}

int nvmlDeviceGetPciInfo_v3(void *device, void *pci) {
    memset(pci, 0, 68);
    strcpy((char *)pci + 36, ((Gpu *)device)->pci);
    return 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    long index = (Gpu *)device - gpus;
    for (int number = 0; number < divided; number++)
        if (device == &instances[number])
            return snprintf(uuid, length, "%s", instances[number].uuid) < 0;
    return snprintf(uuid, length, "GPU-%lda%ldb-00", index, index) < 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    return snprintf(name, length, "NVIDIA GPU %ld", (long)((Gpu *)device - gpus)) < 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *found) {
    (void)device;
    *found = 7;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **instance) {
    load();
    if ((int)index >= divided || &gpus[instances[index].gpu] != (Gpu *)device) return NOT_FOUND;
    *instance = &instances[index];
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, u64 *memory) {
    unsigned used;
    int code = number(device, USED, &used);
    memory[0] = 80ull << 30, memory[2] = used, memory[1] = memory[0] - used;
    return code ? code : (int)((Gpu *)device)->of[MEMORY];
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[1] = 0;
    return number(device, UTILIZATION, rates);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *found) { return number(device, POWER, found); }

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *found) {
    return sensor ? NOT_SUPPORTED : number(device, TEMPERATURE, found);
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, u64 *found) {
    unsigned errors;
    int code = number(device, ECC, &errors);
    *found = errors;
    return kind == 1 && counter == 0 ? code : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *found) { return number(device, WIDTH, found); }

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *found) { return number(device, MAX, found); }

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *found) {
    unsigned reasons;
    int code = number(device, REASONS, &reasons);
    *found = reasons;
    return code;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    *corrected = *uncorrected = 0;
    number(device, PENDING, pending);
    return number(device, FAILED, failed);
}

int nvmlEventSetCreate(void **set) { *set = &given; return 0; }

int nvmlDeviceRegisterEvents(void *device, u64 kinds, void *set) {
    (void)device, (void)set;
    return kinds == 8 ? 0 : NOT_SUPPORTED;
}

struct event { void *device; u64 type, data; unsigned gpu_instance, compute_instance; };

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    (void)set, (void)milliseconds;
    load();
    if (given >= events) return TIMEOUT;
    event->device = &gpus[xids[given].gpu], event->type = 8, event->data = xids[given++].number;
    return 0;
}
