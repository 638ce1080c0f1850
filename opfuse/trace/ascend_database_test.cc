// Databases as the documentation of Ascend's profilers describes them: made here, by no vendor.

#if OPFUSE_SQLITE

#include <sqlite3.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <unistd.h>

#include <gtest/gtest.h>

#include "opfuse/trace/calls.h"
#include "opfuse/trace/file_text.h"
#include "opfuse/trace/read.h"

namespace opfuse::trace {
namespace {

// One operator "aten::sigmoid" at 1000 ns with its kernel at 3000 ns; times of the host as text.
constexpr const char* kTables = R"(
CREATE TABLE STRING_IDS (id INTEGER, value TEXT);
INSERT INTO STRING_IDS VALUES (1,'aten::sigmoid'),(2,'128,16'),(3,'float'),(4,'Sigmoid'),
  (5,'aclnnSigmoid'),(6,'model.py(7): forward'),(7,'N/A'),(8,'main.py(3): <module>'),(9,'FLOAT'),
  (10,'hcom_allReduce_');
CREATE TABLE ENUM_API_TYPE (id INTEGER, name TEXT);
INSERT INTO ENUM_API_TYPE VALUES (50001,'op'),(50002,'queue');
CREATE TABLE CONNECTION_IDS (id INTEGER, connectionId INTEGER);
INSERT INTO CONNECTION_IDS VALUES (4,77);
CREATE TABLE PYTORCH_CALLCHAINS (id INTEGER, stack INTEGER, stackDepth INTEGER);
INSERT INTO PYTORCH_CALLCHAINS VALUES (1,8,1),(1,6,0);
CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER,
  name INTEGER, sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER,
  inputShapes INTEGER, callchainId INTEGER, type INTEGER);
INSERT INTO PYTORCH_API VALUES ('1000','2000',4294967298,4,1,9,NULL,3,2,1,50001),
  ('2500','2600',4294967299,5,1,NULL,NULL,7,7,NULL,50002);
CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER,
  globalTaskId INTEGER, streamId INTEGER);
INSERT INTO TASK VALUES (3000,3500,0,77,11,2),(4000,4001,0,78,12,2);
CREATE TABLE COMPUTE_TASK_INFO (globalTaskId INTEGER, name INTEGER, opType INTEGER,
  inputShapes INTEGER, inputDataTypes INTEGER, outputShapes INTEGER, outputDataTypes INTEGER);
INSERT INTO COMPUTE_TASK_INFO VALUES (11,5,4,2,9,2,9);
CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER,
  connectionId INTEGER);
INSERT INTO COMMUNICATION_OP VALUES (10,5000,6000,99);
CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER);
INSERT INTO STEP_TIME VALUES (3,900,7000);
)";

std::string made(const char* statements) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("opfuse-database-" + std::to_string(::getpid()) + ".db");
  std::filesystem::remove(path);
  sqlite3* database = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, statements, nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(database);
  sqlite3_close(database);
  return path.string();
}

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(AscendDatabase, OperatorsKernelsAndStepsAreJoined) {
  const std::string path = made(kTables);
  const auto file = read_trace(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->format, "ascend database");
  EXPECT_FALSE(file->losses.damaged()) << print_losses(file->losses);
  ASSERT_EQ(file->size(), 5u);
  LossLog losses;
  const Calls calls = find_calls(*file, &losses);
  int32_t op = kNone, kernel = kNone;
  for (size_t i = 0; i < file->size(); ++i) {
    if (file->kind[i] == FileKind::kOperator) op = static_cast<int32_t>(i);
    if (file->kind[i] == FileKind::kKernel && file->dur_ns[i] == 500)
      kernel = static_cast<int32_t>(i);
  }
  ASSERT_TRUE(op != kNone && kernel != kNone);
  EXPECT_EQ(file->start_ns[op], 1000);
  EXPECT_EQ(file->dur_ns[op], 1000);
  EXPECT_EQ(file->threads[file->thread[op]].pid, 1);
  EXPECT_EQ(file->threads[file->thread[op]].tid, 2);
  const OperatorDetail& detail = file->operators[file->detail[op]];
  EXPECT_EQ(file->text(detail.dims), "128,16");
  EXPECT_EQ(file->text(detail.call_stack), "model.py(7): forward;\r\nmain.py(3): <module>");
  EXPECT_EQ(calls.operator_of[kernel], op);
  EXPECT_EQ(file->text(file->device_shapes[file->devices[file->detail[kernel]].shapes].type),
            "Sigmoid");
  // From a pipe the bytes are held in memory.
  const auto piped = read_trace_text(bytes_of_file(path), "pipe");
  ASSERT_TRUE(piped.ok()) << piped.error().message;
  EXPECT_EQ(print_events(*piped), print_events(*file));
  std::filesystem::remove(path);
}

TEST(AscendDatabase, WhatIsNoDatabaseOfAProfilerIsAnError) {
  const std::string path = made("CREATE TABLE other (id INTEGER)");
  const auto file = read_trace(path);
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("without the tables"), std::string::npos);
  std::filesystem::remove(path);
}

// A torn page: what SQLite can still read is used, the rest is counted.
TEST(AscendDatabase, DamagedBytesAreNamedAndNeverCrash) {
  const std::string path = made(kTables), whole = bytes_of_file(path);
  std::filesystem::remove(path);
  size_t damaged = 0;
  for (size_t at = 100; at < whole.size(); at += 97) {
    std::string bytes = whole;
    for (size_t i = at; i < std::min(at + 40, bytes.size()); ++i) bytes[i] = '\xee';
    const auto file = read_trace_text(bytes, "damaged");
    damaged += !file.ok() || file->losses.damaged();
  }
  EXPECT_GT(damaged, 0u);
}

}  // namespace
}  // namespace opfuse::trace

#endif
