#pragma once
// The C interface of libopfuse_torch.so, called by ctypes with the GIL released.

extern "C" {

// Runs `method` of the process's session on a JSON object and returns a JSON object as a
// NUL-terminated string: the answer, or {"error": "sentence"}. Never throws. Free with opfuse_free.
__attribute__((visibility("default"))) char* opfuse_call(const char* method,
                                                         const char* request_json);
__attribute__((visibility("default"))) void opfuse_free(char* answer);
}
