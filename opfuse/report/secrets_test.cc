#include "opfuse/report/secrets.h"

#include <gmock/gmock.h>

namespace opfuse::report {
namespace {

using ::testing::ElementsAre;

TEST(Secrets, ValuesOfSecretFlagsAreMasked) {
  EXPECT_THAT(
      mask_command({"python", "t.py", "--api-key", "abc123def", "--password=x y", "-b", "16"}),
      ElementsAre("python", "t.py", "--api-key", "***", "--password=***", "-b", "16"));
  EXPECT_THAT(mask_command({"env", "WANDB_API_KEY=0123abcd", "HF_TOKEN=zz", "python", "t.py"}),
              ElementsAre("env", "WANDB_API_KEY=***", "HF_TOKEN=***", "python", "t.py"));
}

TEST(Secrets, OrdinaryOptionsStayAsTheyAre) {
  const std::vector<std::string> command = {"python",       "t.py",          "--key-dim",   "64",
                                            "--max-tokens", "512",           "--tokenizer", "bert",
                                            "--author",     "someone",       "--monkey",    "no",
                                            "--keep=last",  "--num-keys=32", "--lr",        "0.1"};
  EXPECT_EQ(mask_command(command), command);
}

TEST(Secrets, WellKnownShapesAreMaskedAnywhere) {
  EXPECT_EQ(mask_text("git clone https://me:pw@host/x.git"), "git clone https://***@host/x.git");
  EXPECT_EQ(mask_text("https://h/data?user=1&access_token=abc&x=2"),
            "https://h/data?user=1&access_token=***&x=2");
  EXPECT_EQ(mask_text("login hf_AbCdEfGhIjKl failed"), "login *** failed");
  EXPECT_EQ(mask_text("Authorization: Bearer abcdefgh12345"), "Authorization: Bearer ***");
  EXPECT_EQ(mask_text("AKIAIOSFODNN7EXAMPLE"), "***");
}

TEST(Secrets, VariablesAreMaskedByNameOrShape) {
  EXPECT_EQ(mask_variable("AWS_SECRET_ACCESS_KEY", "abc"), "***");
  EXPECT_EQ(mask_variable("OMP_NUM_THREADS", "2"), "2");
  EXPECT_EQ(mask_variable("DATA_URL", "s3://user:pw@host"), "s3://***@host");
}

TEST(Secrets, LongTextsAreCutInsteadOfExhaustingTheStack) {
  const std::string text = mask_text(std::string(1 << 20, 'a'));
  EXPECT_TRUE(text.ends_with("..."));
  EXPECT_LT(text.size(), size_t{1} << 15);
}

}  // namespace
}  // namespace opfuse::report
