# Homebrew formula. Nothing is published yet, so it installs the commit of this clone:
#   brew install --HEAD deploy/homebrew/toolway.rb
# For a tap, add `homepage`, and `url` and `sha256` of the sdist, which scripts/release.py prints.
class Toolway < Formula
  include Language::Python::Virtualenv

  desc "Library, command-line and gateway for calling tools of many MCP servers reliably"
  license "Apache-2.0"
  head do
    url "file://#{__dir__}/../..", using: :git, branch: "main"
  end

  depends_on "python@3.13"

  def install
    venv = virtualenv_create(libexec, "python3.13")
    system libexec/"bin/python", "-m", "pip", "install", "--require-hashes", "-r", buildpath/"requirements/run.txt"
    venv.pip_install_and_link buildpath
    generate_completions_from_executable(bin/"toolway", "completion")
  end

  service do
    run [opt_bin/"toolway", "serve"]
    keep_alive true
    log_path var/"log/toolway.log"
    error_log_path var/"log/toolway.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/toolway --version") unless build.head?
    assert_match "E-TIMEOUT", shell_output("#{bin}/toolway explain E-TIMEOUT")
  end
end
